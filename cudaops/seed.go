package cudaops

// defaultSeed is the seed of a card that nobody has seeded, PyTorch's.
const defaultSeed = 67280421310721

// ManualSeed sets the seed of the current card's random numbers.
func ManualSeed(seed uint64) error {
	s, err := useCards()
	if err != nil {
		return err
	}
	s.cards[s.current.Load()].seed.Store(seed)
	return nil
}

// ManualSeedAll sets the seed of every visible card's random numbers.
func ManualSeedAll(seed uint64) error {
	s, err := useCards()
	if err != nil {
		return err
	}
	for _, c := range s.cards {
		c.seed.Store(seed)
	}
	return nil
}

// InitialSeed is the seed of the card's random numbers: 67280421310721 unless it
// was set.
func InitialSeed(device int) (uint64, error) {
	c, err := lookup(device)
	if err != nil {
		return 0, err
	}
	return c.seed.Load(), nil
}
