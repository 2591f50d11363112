package exec

// libraries are where products and convolutions go first. Each method plans a call for the current step, or reports that it cannot be.
type libraries interface {
	product(b *planner, p matrices) bool
	convolution(b *planner, c convolution) bool
}

// none has no library: kernels of our own do everything.
type none struct{}

func (none) product(*planner, matrices) bool        { return false }
func (none) convolution(*planner, convolution) bool { return false }
