package host

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// maxDims is the most dimensions a loop may have after merging.
const maxDims = 12

// space is the index space of a loop after merging: rows, counted by all dimensions but the last, of cols elements.
type space struct {
	ext        []int // extents, at least one
	rows, cols int
}

func (s space) size() int { return s.rows * s.cols }

// view is how an operand lies in a space.
type view struct {
	strides []int // one a dimension of the space
	linear  bool  // row r starts at r*pitch; otherwise walk the dimensions
	pitch   int
	step    int // the stride along a row
}

// merge drops dimensions of extent 1 and joins neighbours that are one dimension for all operands: where the outer stride is
// the inner stride times the inner extent. strides holds one list an operand, as long as shape.
func merge(shape []int, strides [][]int) (space, []view, error) {
	ext, merged := ir.Squeeze(shape, strides...)
	if len(ext) == 0 {
		ext = []int{1}
		for i := range merged {
			merged[i] = []int{0}
		}
	}
	if len(ext) > maxDims {
		return space{}, nil, fmt.Errorf("shape %v has %d dimensions that do not merge; at most %d work", shape, len(ext), maxDims)
	}
	s := space{ext: ext, rows: 1, cols: ext[len(ext)-1]}
	for _, n := range ext[:len(ext)-1] {
		s.rows *= n
	}
	views := make([]view, len(strides))
	for i := range views {
		views[i] = newView(ext, merged[i])
	}
	return s, views, nil
}

func newView(ext, strides []int) view {
	k := len(ext) - 1
	v := view{strides: strides, linear: true, step: strides[k]}
	if k > 0 {
		v.pitch = strides[k-1]
		for d := k - 2; d >= 0; d-- {
			v.linear = v.linear && strides[d] == strides[d+1]*ext[d+1]
		}
	}
	return v
}

// offset is where row r starts.
func (v *view) offset(ext []int, r int) int {
	if v.linear {
		return r * v.pitch
	}
	off := 0
	for d := len(ext) - 2; d >= 0; d-- {
		off += r % ext[d] * v.strides[d]
		r /= ext[d]
	}
	return off
}

// dense reports whether count rows from any row on lie one after the other without gaps.
func (v *view) dense(cols, count int) bool {
	return v.step == 1 && (count == 1 || v.linear && v.pitch == cols)
}

// walker steps through the row offsets of a view in order.
type walker struct {
	v   *view
	ext []int
	off int
	at  [maxDims]int
}

// start puts the walker on row r.
func (w *walker) start(v *view, ext []int, r int) {
	w.v, w.ext = v, ext
	w.off = v.offset(ext, r)
	if v.linear {
		return
	}
	for d := len(ext) - 2; d >= 0; d-- {
		w.at[d] = r % ext[d]
		r /= ext[d]
	}
}

// next moves on by one row.
func (w *walker) next() {
	if w.v.linear {
		w.off += w.v.pitch
		return
	}
	for d := len(w.ext) - 2; d >= 0; d-- {
		w.off += w.v.strides[d]
		if w.at[d]++; w.at[d] < w.ext[d] {
			return
		}
		w.off -= w.at[d] * w.v.strides[d]
		w.at[d] = 0
	}
}

// repeats reports whether all rows are the same.
func (v *view) repeats() bool {
	for _, s := range v.strides[:len(v.strides)-1] {
		if s != 0 {
			return false
		}
	}
	return true
}

// tiling cuts a space into tiles: pieces of a row where rows are long, several whole rows where they are short. It
// depends on the shape only, so the bits of a result do too.
type tiling struct {
	tileRows int // rows a tile; the last may have fewer
	tileCols int // columns a tile
	pieces   int // tiles a row, when tileRows is 1
	count    int // tiles in all
}

const (
	tileLen  = 1024 // elements of a tile at most: four of them fill half of a first-level cache
	shortRow = 512  // rows up to this share tiles: a row of its own would cost more calls than copies of what repeats in it
)

func (s space) tiling() tiling {
	if s.size() == 0 {
		return tiling{tileRows: 1, tileCols: 1, pieces: 1}
	}
	if s.cols <= shortRow && s.rows > 1 {
		m := min(tileLen/s.cols, s.rows)
		return tiling{tileRows: m, tileCols: s.cols, pieces: 1, count: (s.rows + m - 1) / m}
	}
	pieces := (s.cols + tileLen - 1) / tileLen
	cols := (s.cols + pieces - 1) / pieces
	cols = min((cols+15)&^15, tileLen) // whole vectors, and pieces that start on cache lines
	pieces = (s.cols + cols - 1) / cols
	return tiling{tileRows: 1, tileCols: cols, pieces: pieces, count: s.rows * pieces}
}

// tile is one tile: rows [row, row+rows), columns [col, col+cols).
type tile struct{ row, rows, col, cols int }

func (t *tiling) tile(s *space, i int) tile {
	if t.tileRows > 1 {
		r := i * t.tileRows
		return tile{r, min(t.tileRows, s.rows-r), 0, s.cols}
	}
	if t.pieces == 1 {
		return tile{i, 1, 0, s.cols}
	}
	c := i % t.pieces * t.tileCols
	return tile{i / t.pieces, 1, c, min(t.tileCols, s.cols-c)}
}
