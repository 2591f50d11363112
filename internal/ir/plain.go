package ir

// Plain returns steps that do together what s does, with no more of an epilogue than bias and relu: first the product alone, then a loop
// that applies the mask in place, then the sums; or a pooling and then its places; or losses and then their gradient. It is for backends that have nothing better, and says what those words mean. A step without
// them is returned as it is.
func (s *Step) Plain() []Step {
	e := s.Epilogue
	if e.Places {
		pool, places := *s, *s
		pool.Out, pool.Epilogue = s.Out[:1], Epilogue{}
		places.Op, places.Out, places.Epilogue = PoolPlaces{s.Op.(Pool2d).Pool}, s.Out[1:], Epilogue{}
		return []Step{pool, places}
	}
	if e.Losses {
		losses, grad := *s, *s
		losses.Op, losses.In, losses.Out, losses.Epilogue = CrossEntropy(s.Op.(CrossEntropyGrad)), s.In[:3:3], s.Out[1:], Epilogue{}
		grad.Out, grad.Epilogue = s.Out[:1:1], Epilogue{}
		return []Step{losses, grad}
	}
	if e.Mask == 0 && !e.Sums && !e.Totals {
		return []Step{*s}
	}
	if _, ok := s.Op.(Conv2dGradW); ok {
		return s.plainMasked()
	}
	product := *s
	product.In, product.Out, product.Epilogue = s.In[:2:2], s.Out[:1:1], Epilogue{Relu: e.Relu}
	if e.Bias != 0 {
		product.In, product.Epilogue.Bias = []Operand{s.In[0], s.In[1], s.In[e.Bias]}, 2
	}
	steps := []Step{product}
	if e.Mask != 0 {
		steps = append(steps, s.masked(s.Out[0]))
	}
	if e.Totals {
		c, sums := s.Out[0], s.Out[1]
		sums.Shape, sums.Strides = Of(1, c.Shape[1]), Of(1, c.Shape[1]).Strides()
		steps = append(steps, Step{
			Op: Reduce{Fn: Sum, Axes: []int{0}}, Name: s.Name, In: []Operand{c}, Out: []Operand{sums},
			Loop: &Loop{Shape: c.Shape, Code: []Instr{{Kind: Load}}},
		})
	}
	if e.Sums {
		a, sums := s.In[0], s.Out[1]
		sums.Shape, sums.Strides = Of(a.Shape[0], 1), []int{1, 1}
		steps = append(steps, Step{
			Op: Reduce{Fn: Sum, Axes: []int{1}}, Name: s.Name, In: []Operand{a}, Out: []Operand{sums},
			Loop: &Loop{Shape: a.Shape, Code: []Instr{{Kind: Load}}},
		})
	}
	return steps
}

// masked is a loop that applies the step's mask to an operand, in place.
func (s *Step) masked(o Operand) Step {
	return Step{
		Op: Fused{}, Name: s.Name, In: []Operand{s.In[s.Epilogue.Mask], o}, Out: []Operand{o}, Results: []int{4},
		Loop: &Loop{Shape: o.Shape, Code: []Instr{
			{Kind: Load, In: 0}, {Kind: Imm}, {Kind: Apply, Fn: Le, A: [3]int{0, 1}}, {Kind: Load, In: 1}, {Kind: Apply, Fn: Where, A: [3]int{2, 1, 3}},
		}},
	}
}

// plainMasked is Plain for the gradient of a convolution by its filters: the mask comes first.
func (s *Step) plainMasked() []Step {
	var steps []Step
	dy := s.In[1]
	if s.Epilogue.Mask != 0 {
		steps = append(steps, s.masked(dy))
	}
	conv := *s
	conv.In, conv.Out, conv.Epilogue = s.In[:2:2], s.Out[:1:1], Epilogue{}
	steps = append(steps, conv)
	if s.Epilogue.Sums {
		sums := s.Out[1]
		sums.Shape, sums.Strides = Of(1, 1, 1, dy.Shape[3]), Of(1, 1, 1, dy.Shape[3]).Strides()
		steps = append(steps, Step{
			Op: Reduce{Fn: Sum, Axes: []int{0, 1, 2}}, Name: s.Name, In: []Operand{dy}, Out: []Operand{sums},
			Loop: &Loop{Shape: dy.Shape, Code: []Instr{{Kind: Load}}},
		})
	}
	return steps
}
