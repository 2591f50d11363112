package host

import "github.com/tandem-train/tandem/internal/philox"

// begin computes the registers of f that are the same in all tiles. It comes before the first tile of a run.
func (l *loop) begin(f *frame) {
	for i := range l.once {
		l.exec(f, &l.once[i], tile{rows: l.tileRows, cols: l.tileCols})
	}
}

// eval runs the body on tile t.
func (l *loop) eval(f *frame, t tile) {
	for i := range l.body {
		l.exec(f, &l.body[i], t)
	}
}

func (l *loop) exec(f *frame, o *op, t tile) {
	n := t.rows * t.cols
	switch o.code {
	case opAlias:
		src := &l.operands[o.operand]
		at := src.offset(l.ext, t.row) + t.col
		f.vec[o.dst] = src.f[at : at+n : at+n]
	case opGather:
		dst := l.dest(f, o, t)
		l.gather(f, &l.operands[o.operand], dst, t)
	case opScalar:
		src := &l.operands[o.operand]
		at := src.offset(l.ext, t.row)
		if src.f != nil {
			f.one[o.dst] = src.f[at]
		} else {
			f.one[o.dst] = float32(src.i[at])
		}
	case opFill:
		dst := l.dest(f, o, t)
		l.kernels.Fill(dst, f.one[o.a])
	case opIndex:
		dst := l.dest(f, o, t)
		l.index(f, &l.operands[o.operand], dst, t)
	case opIndexScalar:
		f.one[o.dst] = float32(l.operands[o.operand].offset(l.ext, t.row))
	case opRandom:
		dst := l.dest(f, o, t)
		l.uniforms(f, o, dst, t)
	case opStore:
		l.scatter(f, &l.operands[o.operand], f.vec[o.a], t)
	case opStoreScalar:
		l.spray(f, &l.operands[o.operand], f.one[o.a], t)
	default:
		l.apply(f, o, t)
	}
}

// apply runs a function of registers.
func (l *loop) apply(f *frame, o *op, t tile) {
	if o.scalar {
		// The same kernels, on vectors of one.
		dst := f.one[o.dst : o.dst+1]
		switch o.code {
		case opV:
			o.v(dst, f.one[o.a:o.a+1])
		case opVV:
			o.vv(dst, f.one[o.a:o.a+1], f.one[o.b:o.b+1])
		case opVVV:
			o.vvv(dst, f.one[o.a:o.a+1], f.one[o.b:o.b+1], f.one[o.c:o.c+1])
		}
		return
	}
	dst := l.dest(f, o, t)
	switch o.code {
	case opV:
		o.v(dst, f.vec[o.a])
	case opVV:
		o.vv(dst, f.vec[o.a], f.vec[o.b])
	case opVS:
		o.vs(dst, f.vec[o.a], f.one[o.b])
	case opVVV:
		o.vvv(dst, f.vec[o.a], f.vec[o.b], f.vec[o.c])
	case opVVS:
		o.vvs(dst, f.vec[o.a], f.vec[o.b], f.one[o.c])
	case opVSS:
		o.vss(dst, f.vec[o.a], f.one[o.b], f.one[o.c])
	}
}

// dest makes the register that o writes a tile of the output or of the buffer.
func (l *loop) dest(f *frame, o *op, t tile) []float32 {
	n := t.rows * t.cols
	var dst []float32
	if o.out >= 0 {
		out := &l.operands[o.out]
		at := out.offset(l.ext, t.row) + t.col
		dst = out.f[at : at+n : at+n]
	} else {
		dst = f.buffers[o.buffer][:n]
	}
	f.vec[o.dst] = dst
	return dst
}

// gather copies a tile of src, however it lies, into dst.
func (l *loop) gather(f *frame, src *operand, dst []float32, t tile) {
	w := &f.walk
	w.start(&src.view, l.ext, t.row)
	for r := range t.rows {
		row := dst[r*t.cols : (r+1)*t.cols]
		at := w.off + t.col*src.step
		switch {
		case src.f == nil:
			for j := range row {
				row[j] = float32(src.i[at])
				at += src.step
			}
		case src.step == 1:
			copy(row, src.f[at:at+len(row)])
		case src.step == 0:
			l.kernels.Fill(row, src.f[at])
		default:
			for j := range row {
				row[j] = src.f[at]
				at += src.step
			}
		}
		w.next()
	}
}

// scatter copies src into a tile of dst.
func (l *loop) scatter(f *frame, dst *operand, src []float32, t tile) {
	w := &f.walk
	w.start(&dst.view, l.ext, t.row)
	for r := range t.rows {
		row := src[r*t.cols : (r+1)*t.cols]
		at := w.off + t.col*dst.step
		if dst.step == 1 {
			copy(dst.f[at:at+len(row)], row)
		} else {
			for _, x := range row {
				dst.f[at] = x
				at += dst.step
			}
		}
		w.next()
	}
}

// spray sets a tile of dst to x.
func (l *loop) spray(f *frame, dst *operand, x float32, t tile) {
	w := &f.walk
	w.start(&dst.view, l.ext, t.row)
	for range t.rows {
		at := w.off + t.col*dst.step
		for range t.cols {
			dst.f[at] = x
			at += dst.step
		}
		w.next()
	}
}

// index writes the indices along an axis; their operand's offsets are the indices themselves.
func (l *loop) index(f *frame, v *operand, dst []float32, t tile) {
	w := &f.walk
	w.start(&v.view, l.ext, t.row)
	for r := range t.rows {
		at := w.off + t.col*v.step
		for j := range t.cols {
			dst[r*t.cols+j] = float32(at)
			at += v.step
		}
		w.next()
	}
}

// uniforms writes random numbers; their operand's offsets are the elements' positions in the rank's part of the numbers.
func (l *loop) uniforms(f *frame, o *op, dst []float32, t tile) {
	v := &l.operands[o.operand]
	s := philox.New(l.key, o.stream)
	if v.dense(l.cols, t.rows) {
		s.FillUniform(dst, l.first+uint64(v.offset(l.ext, t.row)+t.col))
		return
	}
	w := &f.walk
	w.start(&v.view, l.ext, t.row)
	for r := range t.rows {
		at := w.off + t.col*v.step
		row := dst[r*t.cols : (r+1)*t.cols]
		if v.step == 1 {
			s.FillUniform(row, l.first+uint64(at))
		} else {
			for j := range row {
				row[j] = philox.Float32(s.Uint32At(l.first + uint64(at)))
				at += v.step
			}
		}
		w.next()
	}
}
