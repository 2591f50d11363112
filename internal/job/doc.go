// Package job is what the processes of a job know of it: which rank a process is and where the others are ([Place]), and how a
// process says why it failed ([Failure]). The launcher writes both into a worker's environment, and training reads them; neither needs
// to know the other.
//
// # Where a place comes from
//
// [Lookup] reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT), which
// `tandem run` sets, and else those of the engine that started the process: a Slurm step, Open MPI. [LookupNode] reads what the same
// engines, and Kubernetes' indexed jobs, tell a launcher that they start once a node. A process that none of them started has no place.
//
// # Errors
//
// A variable without meaning is a [*VariableError], which names it and says what works.
package job
