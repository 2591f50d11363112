package choices

import (
	"errors"
	"slices"
	"testing"
)

func TestFastest(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		times [][]float64 // of each candidate by turn, the last again and again; negative: fails
		want  int
	}{
		{"one", [][]float64{{3}}, 0},
		{"the last", [][]float64{{3}, {2}, {1}}, 2},
		{"alike", [][]float64{{1}, {0.99}}, 0},
		{"the first fails", [][]float64{{-1}, {2}, {3}}, 1},
		{"the fastest fails", [][]float64{{2}, {-1}, {3}}, 0},
		{"slow at first", [][]float64{{1.4, 1}, {1.2}}, 0},
		{"too slow at first", [][]float64{{9, 1}, {2}}, 1},
	} {
		turn := make([]int, len(c.times))
		got, err := Fastest(len(c.times), func(i int) (float64, error) {
			ms := c.times[i][min(turn[i], len(c.times[i])-1)]
			turn[i]++
			if ms < 0 {
				return 0, broken
			}
			return ms, nil
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
		}
		if slices.Max(turn) > 3 {
			t.Errorf("%s: measured %v times", c.name, turn)
		}
	}
	if _, err := Fastest(2, func(int) (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("all fail: %v", err)
	}
	if _, err := Fastest(0, nil); err == nil {
		t.Error("the fastest of none")
	}
}
