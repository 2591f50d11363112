package cudnn

// cut is a batch in pieces of so many samples, of which the last may have fewer. A convolution of a piece needs less workspace, where that holds
// the operands in another order, and more of what it works on stays in the card's cache.
type cut struct{ batch, samples int }

// pieces is how many there are.
func (c cut) pieces() int { return (c.batch + c.samples - 1) / c.samples }

// piece is where the i-th begins, and its samples.
func (c cut) piece(i int) (first, samples int) {
	first = i * c.samples
	return first, min(c.samples, c.batch-first)
}

// sizes are the different numbers of samples that pieces have.
func (c cut) sizes() []int {
	if _, last := c.piece(c.pieces() - 1); last != c.samples {
		return []int{c.samples, last}
	}
	return []int{c.samples}
}

// cuts lists the whole batch, two pieces, four and so on, as long as a piece has at least so many samples. All pieces begin at a multiple.
func cuts(batch, least, multiple int) []cut {
	all := []cut{{batch, batch}}
	for n := 2; ; n *= 2 {
		samples := ((batch+n-1)/n + multiple - 1) / multiple * multiple
		if samples < least || samples >= all[len(all)-1].samples {
			return all
		}
		all = append(all, cut{batch, samples})
	}
}

// even is of how many samples a multiple begins at a multiple of 16 bytes, where one has so many numbers of a size in bytes.
func even(numbers, size int) int {
	n := 1
	for numbers*size*n%16 != 0 {
		n *= 2
	}
	return n
}
