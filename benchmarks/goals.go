package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// goal is what a step's ratio to the best of the peers is to be, at most.
type goal struct {
	workload string
	batch    int
	mode     string
	ratio    float64
}

var goals = []goal{
	{"mlp", 64, "tf32 pipelined", 0.5},
	{"mlp", 4096, "tf32 pipelined", 0.6},
	{"cnn", 64, "tf32 pipelined", 0.6},
	{"cnn", 4096, "tf32 pipelined", 0.8},
	{"big", 4096, "tf32 pipelined", 0.95},
	{"big", 4096, "bf16 pipelined", 0.9},
	{deepName, 4096, "tf32, " + halfKept, 1.35},
}

// What every workload is to reach: as much memory as the best peer, at most, and the first step soon.
const (
	memoryGoal = 1   // ratio
	startGoal  = 1e3 // milliseconds
	// jobStartGoal is that of a job of several processes.
	jobStartGoal = 1.5e3
	// scalingGoal is for networks that keep cards busy with half of the batch.
	scalingGoal = 0.95
)

// scalesWell are the cases that scalingGoal is for.
var scalesWell = []goal{{workload: "cnn", batch: 4096, mode: "tf32 pipelined"}, {workload: "big", batch: 4096, mode: "bf16 pipelined"}}

// outcome is how one of our rows stands beside the best peer.
type outcome struct {
	row
	wanted string // "" where nothing is asked for
	met    bool
}

// reached finds, for each of our rows on a card that has peers, the best of them.
func reached(rows []row) (list []outcome) {
	for _, r := range rows {
		if r.Suite != cardSuite && r.Suite != cardsSuite || r.Ratio == nil || r.limit {
			continue
		}
		i := slices.IndexFunc(list, func(o outcome) bool {
			return o.Workload == r.Workload && batch(o.row) == batch(r) && o.Mode == r.Mode && o.Metric == r.Metric
		})
		switch {
		case i < 0:
			list = append(list, judge(r))
		case *r.Ratio > *list[i].Ratio:
			list[i] = judge(r)
		}
	}
	return list
}

// judge compares a row with what is wanted of it.
func judge(r row) outcome {
	limit := func(ratio float64) outcome {
		return outcome{r, fmt.Sprintf("ratio <= %.3g", ratio), *r.Ratio <= ratio}
	}
	switch r.Metric {
	case peakMemory:
		return limit(memoryGoal)
	case startToStep:
		limit := startGoal
		if r.Suite == cardsSuite {
			limit = jobStartGoal
		}
		return outcome{r, fmt.Sprintf("<= %.0f ms", limit), r.Value <= limit}
	}
	mode := r.Mode
	if r.Suite == cardsSuite {
		mode, _, _ = strings.Cut(mode, ",") // what follows is how cards share the work
	}
	is := func(g goal) bool { return g.workload == r.Workload && g.batch == *r.Batch && g.mode == mode }
	if r.Metric == scalesTo {
		if slices.ContainsFunc(scalesWell, is) {
			return outcome{r, fmt.Sprintf(">= %.3g", scalingGoal), r.Value >= scalingGoal}
		}
		return outcome{row: r}
	}
	if i := slices.IndexFunc(goals, is); i >= 0 {
		return limit(goals[i].ratio)
	}
	return outcome{row: r}
}

// writeGoals writes outcomes as a Markdown table.
func writeGoals(w io.Writer, list []outcome) {
	table := [][]string{{"workload", "batch", "mode", "metric", "ours", "best peer", "its", "unit", "ratio", "wanted", ""}}
	for _, o := range list {
		verdict := ""
		if o.wanted != "" {
			verdict = map[bool]string{true: "met", false: "missed"}[o.met]
		}
		table = append(table, []string{
			o.Workload, batch(o.row), o.Mode, o.Metric, number(o.Value), *o.Peer, number(o.theirs()), o.Unit, number(*o.Ratio), o.wanted, verdict,
		})
	}
	alignTable(w, table, []bool{false, true, false, false, true, false, true, false, true, true, false})
}
