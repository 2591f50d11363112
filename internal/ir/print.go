package ir

import (
	"fmt"
	"strings"
)

// String prints the graph, one value a line: number, type, op with its attributes, arguments, name.
func (g *Graph) String() string {
	var b strings.Builder
	for _, v := range g.Values {
		fmt.Fprintf(&b, "%%%d = %s%s %s", v.ID, v.DType, v.Shape, describe(v.Op))
		for _, a := range v.Args {
			fmt.Fprintf(&b, " %%%d", a.ID)
		}
		if v.Name != "" {
			fmt.Fprintf(&b, "  # %s", v.Name)
		}
		b.WriteByte('\n')
	}
	for _, st := range g.Stores {
		fmt.Fprintf(&b, "store %s %s = %%%d\n", st.Slot.Region, st.Slot.Name, st.Value.ID)
	}
	return b.String()
}

// describe prints an op with its attributes.
func describe(op Op) string {
	switch op := op.(type) {
	case Read:
		return fmt.Sprintf("read %s %s", op.Slot.Region, op.Slot.Name)
	case Data:
		return "data"
	case Map:
		return op.Fn.String()
	}
	attrs := fmt.Sprintf("%+v", op)
	if attrs == "{}" {
		return opName(op)
	}
	return opName(op) + attrs
}

// String prints the program: its regions, then one step a line, loops with their code.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %s\n", p.Name)
	for r, n := range p.Size {
		if n > 0 {
			fmt.Fprintf(&b, "  %-8s %d\n", Region(r), n)
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		fmt.Fprintf(&b, "%4d %s", i, describe(s.Op))
		for j, o := range s.Out {
			sep := ", "
			if j == 0 {
				sep = " "
			}
			fmt.Fprintf(&b, "%s%v", sep, o)
		}
		b.WriteString(" <-")
		for _, o := range s.In {
			fmt.Fprintf(&b, " %v", o)
		}
		if s.Epilogue.Bias > 0 {
			b.WriteString(" +bias")
		}
		if s.Epilogue.Relu {
			b.WriteString(" relu")
		}
		if s.Epilogue.Mask > 0 {
			b.WriteString(" mask")
		}
		if s.Epilogue.Places {
			b.WriteString(" places")
		}
		if s.Epilogue.Losses {
			b.WriteString(" losses")
		}
		if s.Epilogue.Sums {
			b.WriteString(" sums")
		}
		if s.Epilogue.Totals {
			b.WriteString(" totals")
		}
		if s.Name != "" {
			fmt.Fprintf(&b, "  # %s", s.Name)
		}
		b.WriteByte('\n')
		if s.Loop != nil {
			fmt.Fprintf(&b, "       for %s:", s.Loop.Shape)
			for r, in := range s.Loop.Code {
				fmt.Fprintf(&b, " r%d=%v", r, in)
			}
			for j, r := range s.Results {
				fmt.Fprintf(&b, " out%d=r%d", j, r)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// String prints the instruction as in "mul(r0,r1)".
func (in Instr) String() string {
	switch in.Kind {
	case Load:
		return fmt.Sprintf("in%d", in.In)
	case Imm:
		return fmt.Sprint(in.X)
	case Index:
		return fmt.Sprintf("index(%d)", in.Axis)
	case Random:
		if in.Rand.ChannelsLast {
			return fmt.Sprintf("random(%d, channels last)", in.Rand.Stream)
		}
		return fmt.Sprintf("random(%d)", in.Rand.Stream)
	}
	args := make([]string, in.Fn.Arity())
	for i := range args {
		args[i] = fmt.Sprintf("r%d", in.A[i])
	}
	return fmt.Sprintf("%s(%s)", in.Fn, strings.Join(args, ","))
}
