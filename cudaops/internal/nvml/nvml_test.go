package nvml

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fakeLibrary has the cards that a test wants.
type fakeLibrary struct {
	devices []*fakeDevice
	err     error // of count
}

func (l *fakeLibrary) count() (int, error)          { return len(l.devices), l.err }
func (l *fakeLibrary) device(i int) (device, error) { return l.devices[i], l.devices[i].lost }

// fakeDevice tells what is in card, or fails as fails says, by method.
type fakeDevice struct {
	card  Card
	fails map[string]error
	lost  error
}

func (d *fakeDevice) name() (string, error)         { return d.card.Name, d.fails["name"] }
func (d *fakeDevice) uuid() (string, error)         { return d.card.UUID, d.fails["uuid"] }
func (d *fakeDevice) capability() (int, int, error) { return d.card.Major, d.card.Minor, nil }
func (d *fakeDevice) busID() (string, error)        { return d.card.BusID, nil }
func (d *fakeDevice) memory() (int64, int64, error) {
	return d.card.Memory, d.card.MemoryUsed, d.fails["memory"]
}
func (d *fakeDevice) utilization() (int, error)     { return d.card.Utilization, d.fails["utilization"] }
func (d *fakeDevice) processes() ([]Process, error) { return d.card.Processes, nil }
func (d *fakeDevice) link(to device) (string, error) {
	return d.card.Name + "-" + to.(*fakeDevice).card.Name, d.fails["link"]
}

func TestList(t *testing.T) {
	a := Card{Name: "a", UUID: "GPU-a", Major: 9, BusID: "1", Memory: 100, MemoryUsed: 30, Utilization: 7, Processes: []Process{{PID: 5, Bytes: 20}}}
	b := Card{Name: "b", UUID: "GPU-b", Major: 8, Minor: 6, BusID: "2", Memory: 50, Utilization: 0}
	got, err := list(&fakeLibrary{devices: []*fakeDevice{{card: a}, {card: b}}})
	if err != nil {
		t.Fatal(err)
	}
	a.Links, b.Links = []Link{{1, "a-b"}}, []Link{{0, "b-a"}}
	if diff := cmp.Diff([]Card{a, b}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestListOfWhatFails: a card that does not tell all is listed with the rest; what is a failure, and not only unsupported, is told.
func TestListOfWhatFails(t *testing.T) {
	broken := errors.New("broken")
	card := Card{Name: "a", UUID: "GPU-a", Memory: 100, MemoryUsed: 30, Utilization: 7}
	got, err := list(&fakeLibrary{devices: []*fakeDevice{
		{card: card, fails: map[string]error{"memory": broken, "utilization": errUnsupported, "link": broken}},
		{card: card, fails: map[string]error{"memory": errUnsupported, "link": errUnsupported}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Card{
		{Name: "a", UUID: "GPU-a", Memory: Unknown, MemoryUsed: Unknown, Utilization: Unknown},
		{Name: "a", UUID: "GPU-a", Memory: Unknown, MemoryUsed: Unknown, Utilization: 7},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Card{}, "Problem")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p := got[0].Problem; !errors.Is(p, broken) || !strings.Contains(p.Error(), "card 0: memory") || !strings.Contains(p.Error(), "card 0: link to card 1") {
		t.Errorf("card 0: problem %v", p)
	}
	if p := got[1].Problem; p != nil {
		t.Errorf("card 1: problem %v, want none", p)
	}

	for _, lib := range []*fakeLibrary{{err: broken}, {devices: []*fakeDevice{{card: card}, {lost: broken}}}} {
		if _, err := list(lib); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	}
}

// TestCards asks the library of this machine.
func TestCards(t *testing.T) {
	cards, err := Cards()
	if errors.Is(err, ErrUnavailable) {
		if text := err.Error(); !strings.HasPrefix(text, "NVML can't be asked: ") {
			t.Errorf("error %q does not say why", text)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cards {
		if c.Problem != nil || c.Name == "" || !strings.HasPrefix(c.UUID, "GPU-") || c.Memory <= 0 || c.Major < 1 || len(c.Links) != len(cards)-1 {
			t.Errorf("card %d: %+v", i, c)
		}
	}
}
