"""By what ranks learn where rank 0 listens: the stores of MPI launchers, PMI and PMIx, and a socket of one host."""
