package cudaops

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/cudaops/internal/testhook"
)

// The environment variables that say which cards there are.
const (
	visibleVariable = "CUDA_VISIBLE_DEVICES"
	limitVariable   = "CUDA_DEVICE_LIMIT"
	simVariable     = "TANDEM_SIM_CARDS"
)

// setting is an environment variable's state.
type setting struct {
	value string
	set   bool
}

func lookupSetting(name string) setting {
	value, set := os.LookupEnv(name)
	return setting{value, set}
}

// environment is the state of the variables at one time.
type environment struct{ visible, limit, sim setting }

func readEnvironment() environment {
	return environment{
		visible: lookupSetting(visibleVariable),
		limit:   lookupSetting(limitVariable),
		sim:     lookupSetting(simVariable),
	}
}

// changed is the error that now is not what env was.
func (env environment) changed(now environment) error {
	if env == now {
		return nil
	}
	e := new(EnvironmentChangedError)
	for _, v := range []struct {
		name      string
		then, now setting
	}{
		{visibleVariable, env.visible, now.visible},
		{limitVariable, env.limit, now.limit},
		{simVariable, env.sim, now.sim},
	} {
		if v.then != v.now {
			*e = EnvironmentChangedError{v.name, v.then.value, v.now.value, v.then.set, v.now.set}
			break
		}
	}
	return e
}

// system is the cards of a process, as its environment made them at first use.
type system struct {
	env     environment
	visible Visibility
	cards   []*card // by logical number
	current atomic.Int64
}

// card is a visible card.
type card struct {
	logical int
	info    cardInfo
	drv     driver
	mem     *allocator
	seed    atomic.Uint64
}

// process is the one system of this process; nil before first use.
var process struct {
	sync.Mutex
	*system
	hideReal bool // tests want no cards but simulated ones
}

func init() {
	testhook.Reset = func(hideReal bool) {
		process.Lock()
		defer process.Unlock()
		process.system, process.hideReal = nil, hideReal
	}
}

// use gives the process's cards and makes them at the first call. An environment
// that makes no sense is not kept: the next call reads it again.
func use() (*system, error) {
	env := readEnvironment()
	process.Lock()
	defer process.Unlock()
	if process.system == nil {
		s, err := open(env, process.hideReal)
		if err != nil {
			return nil, err
		}
		process.system = s
	}
	if err := process.env.changed(env); err != nil {
		return nil, err
	}
	return process.system, nil
}

// useCards is use for calls that need at least one card.
func useCards() (*system, error) {
	s, err := use()
	if err == nil && len(s.cards) == 0 {
		return nil, &NoDeviceError{Visibility: s.visible}
	}
	return s, err
}

// lookup gives the visible card with this logical number.
func lookup(device int) (*card, error) {
	s, err := use()
	if err != nil {
		return nil, err
	}
	return s.card(device)
}

// open makes the cards of an environment: simulated ones where it asks for them,
// else those of CUDA's driver, if there is one.
func open(env environment, hideReal bool) (*system, error) {
	if env.sim.set && env.sim.value != "" {
		drv, visible, err := newSimDriver(env.sim.value, env.visible)
		if err != nil {
			return nil, err
		}
		return newSystem(env, drv, visible)
	}
	var found realCardsFound
	if !hideReal {
		var err error
		if found, err = realCards(); err != nil {
			return nil, err
		}
	}
	if found.read == nil {
		return newSystem(env, nil, ResolveVisible(nil, env.visible.value, env.visible.set))
	}
	if err := (environment{*found.read, env.limit, env.sim}).changed(env); err != nil {
		return nil, err // an earlier call has failed after the driver had read it
	}
	if found.driver == nil {
		return newSystem(env, nil, found.visible) // not a nil *realDriver in the interface
	}
	return newSystem(env, found.driver, found.visible)
}

// newSystem puts seeds, allocators and caps on the cards of a driver, which is
// nil where there are none.
func newSystem(env environment, drv driver, visible Visibility) (*system, error) {
	s := &system{env: env, visible: visible}
	var infos []cardInfo
	if drv != nil {
		infos = drv.cards()
	}
	amounts := make([]*amount, len(infos))
	if env.limit.set && env.limit.value != "" {
		var err error
		if amounts, err = parseDeviceLimit(env.limit.value, len(infos)); err != nil {
			return nil, err
		}
	}
	for i, info := range infos {
		c := &card{logical: i, info: info, drv: drv, mem: newAllocator(drv, i, amounts[i])}
		if err := tellLimit(info.props.UUID, c.mem.limit()); err != nil {
			return nil, err
		}
		c.seed.Store(defaultSeed)
		s.cards = append(s.cards, c)
	}
	return s, nil
}

func (s *system) card(device int) (*card, error) {
	if len(s.cards) == 0 {
		return nil, &NoDeviceError{Visibility: s.visible}
	}
	if device < 0 || device >= len(s.cards) {
		return nil, &InvalidDeviceError{ID: device, Visible: s.devices(), Visibility: s.visible}
	}
	return s.cards[device], nil
}

// choose gives the cards with these logical numbers, or all if none is named.
func (s *system) choose(devices []int) ([]*card, error) {
	if len(devices) == 0 && len(s.cards) > 0 {
		return s.cards, nil
	}
	if len(devices) == 0 {
		return nil, &NoDeviceError{Visibility: s.visible}
	}
	chosen := make([]*card, len(devices))
	for i, d := range devices {
		c, err := s.card(d)
		if err != nil {
			return nil, err
		}
		chosen[i] = c
	}
	return chosen, nil
}
