// Package ref is the meaning of package ir's graphs: every op written down as plainly as its formula, in float64.
//
// It is what lowering, passes and backends are tested against, so it shares no code with any of them and takes no
// shortcuts. An element is a float64 whatever its type; 32-bit integers are exact in it. It is slow: fit for tests only.
//
// Make an [Env] of the sizes of the regions, fill the slots through [Env.At], and [Eval] the parts that would have gone
// to [ir.Compile]; then look at the slots again. [Values] shows every value of a graph instead of storing. [EvalRanks] runs
// a group of ranks in lockstep, collectives included.
//
// The only error is an [*ir.IndexError]: a CheckIndex that found an index out of range. Nothing of that graph is stored then.
// A graph must be free of building errors ([ir.Graph.Err]); one that is not may panic. An Env is for one goroutine at a time.
package ref
