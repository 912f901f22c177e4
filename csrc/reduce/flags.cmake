# How the kernels are compiled; included by csrc/CMakeLists.txt. Always optimised: in a debug build they would be
# unusably slow, and its tests would test other code. The instruction sets are switched inside the files; see
# csrc/reduce/kernels.h.
set_source_files_properties(
  reduce/baseline.cc reduce/avx2.cc reduce/avx512.cc
  PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")
