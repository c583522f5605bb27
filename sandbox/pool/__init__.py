"""Many judgings: the dispatcher, executors of this machine, of Ray and of a service, and the pool that programs use."""
