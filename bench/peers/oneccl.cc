// The collectives of oneCCL as C functions, which bench/peers/oneccl.py compiles, and calls in ranks.

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>

namespace {

std::shared_ptr<ccl::kvs> store;
std::unique_ptr<ccl::communicator> communicator;

// What was thrown must not leave C functions.
template <typename Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oneCCL: %s\n", error.what());
    return 1;
  }
}

}  // namespace

extern "C" {

std::size_t oneccl_address_size() { return ccl::kvs::address_max_size; }

// On rank 0: makes the store by which ranks find each other, and writes its address.
int oneccl_listen(char* address) {
  return guarded([&] {
    ccl::init();
    store = ccl::create_main_kvs();
    const ccl::kvs::address_type made = store->get_address();
    std::memcpy(address, made.data(), made.size());
  });
}

// On every rank, with the address that rank 0 has written.
int oneccl_connect(int rank, int size, const char* address) {
  return guarded([&] {
    ccl::init();
    if (!store) {
      ccl::kvs::address_type copy{};
      std::memcpy(copy.data(), address, copy.size());
      store = ccl::create_kvs(copy);
    }
    communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, store));
  });
}

int oneccl_all_reduce(void* x, std::size_t count, int dtype, int op) {
  return guarded([&] {
    ccl::allreduce(x, x, count, static_cast<ccl::datatype>(dtype), static_cast<ccl::reduction>(op), *communicator)
        .wait();
  });
}

int oneccl_broadcast(void* x, std::size_t count, int dtype) {
  return guarded([&] { ccl::broadcast(x, count, static_cast<ccl::datatype>(dtype), 0, *communicator).wait(); });
}

// Of the parts it wants the length of one.
int oneccl_all_gather(const void* x, std::size_t count, int dtype, void* out) {
  return guarded([&] { ccl::allgather(x, out, count, static_cast<ccl::datatype>(dtype), *communicator).wait(); });
}

int oneccl_reduce_scatter(const void* x, std::size_t count, int dtype, void* out, int op) {
  return guarded([&] {
    ccl::reduce_scatter(x, out, count / communicator->size(), static_cast<ccl::datatype>(dtype),
                        static_cast<ccl::reduction>(op), *communicator)
        .wait();
  });
}

int oneccl_all_to_all(const void* x, std::size_t count, int dtype, void* out) {
  return guarded([&] {
    ccl::alltoall(x, out, count / communicator->size(), static_cast<ccl::datatype>(dtype), *communicator).wait();
  });
}

int oneccl_barrier() {
  return guarded([] { ccl::barrier(*communicator).wait(); });
}

}  // extern "C"
