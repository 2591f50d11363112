package comm

import (
	"fmt"
	"slices"
)

// Fact is something that ranks must agree on: a version, the strategy, the shape of a parameter.
type Fact struct{ Name, Value string }

// DisagreementError is the error of ranks whose facts differ. All ranks get the same.
type DisagreementError struct {
	Rank  int  // the first rank whose facts are not rank 0's
	Zero  Fact // rank 0's; without a name if it has none
	Other Fact // of Rank
}

func (e *DisagreementError) Error() string {
	var differ string
	switch {
	case e.Zero.Name == e.Other.Name:
		differ = fmt.Sprintf("%s is %s on rank 0 and %s on rank %d", e.Zero.Name, e.Zero.Value, e.Other.Value, e.Rank)
	case e.Other.Name == "":
		differ = fmt.Sprintf("%s is %s on rank 0 and missing on rank %d", e.Zero.Name, e.Zero.Value, e.Rank)
	case e.Zero.Name == "":
		differ = fmt.Sprintf("%s is missing on rank 0 and %s on rank %d", e.Other.Name, e.Other.Value, e.Rank)
	default:
		differ = fmt.Sprintf("where rank 0 has %s, rank %d has %s", e.Zero.Name, e.Rank, e.Other.Name)
	}
	return "comm: ranks disagree: " + differ + ": every rank must build the same model with the same settings"
}

// disagreement is the first difference between rank 0's facts and those of another rank, or nil.
func disagreement(zero []Fact, rank int, other []Fact) *DisagreementError {
	for i := range max(len(zero), len(other)) {
		e := &DisagreementError{Rank: rank}
		if i < len(zero) {
			e.Zero = zero[i]
		}
		if i < len(other) {
			e.Other = other[i]
		}
		if e.Zero == e.Other {
			continue
		}
		if e.Zero.Name != e.Other.Name {
			// One has a fact more here, unless both have both, in another order.
			named := func(name string) func(Fact) bool { return func(f Fact) bool { return f.Name == name } }
			if !slices.ContainsFunc(other, named(e.Zero.Name)) {
				e.Other = Fact{}
			} else if !slices.ContainsFunc(zero, named(e.Other.Name)) {
				e.Zero = Fact{}
			}
		}
		return e
	}
	return nil
}
