// Package metrics shows training to Prometheus.
//
//	server, err := metrics.Serve("localhost:9400", trainer)
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, server.Close()) }()
//
// It is then at http://localhost:9400/metrics, together with what Prometheus' own collectors tell of Go and the process. In a job
// ("tandem run") every process has an endpoint of its own: the port is the one given plus the process's local rank, so that four workers
// are at 9400 to 9403. Who has a registry already registers a [NewCollector] there, and needs no [Server].
//
// Of each process, labelled by the rank of its first replica:
//
//	tandem_step_duration_seconds    summary of steps, from call to loss: their number and the time in them
//	tandem_samples_total            samples trained on, by the ranks of this process
//	tandem_samples_per_second       the same of the last step, per second of it
//	tandem_loss                     of the last step, over the whole batch
//	tandem_restarts_total           how often the launcher has started the job again
//
// And of each rank, with the card it has, if it has one:
//
//	tandem_collective_seconds_total time in collectives on the host, waiting for others included; linked cards sum by themselves,
//	                                and only the wait before that counts
//	tandem_memory_allocated_bytes   of the card's memory, in use by this process
//	tandem_memory_reserved_bytes    the same, with what is cached for later
//	tandem_memory_limit_bytes       what this process may hold; the label source says what limits it
//
// Training is not slowed down: a scrape reads what [dp.DataParallel.Progress] and package cudaops have anyway, and waits for no step.
// Rates over time are Prometheus' to make, such as rate(tandem_samples_total[1m]).
//
// Everything here may be used from several goroutines at once.
package metrics
