package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/atomicfile"
)

// drawTimeline draws what a step keeps in memory when: along the program's steps, at the bottom what is there all the time, by kind, and above
// it the activations and their gradients, each from the step that makes it to the last that needs it. The step at which most is kept is marked
// and named.
func drawTimeline(l *dp.Timeline, path string) error {
	const mib = 1 << 20
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s with a batch of %v on %s", l.Plan.Call, l.Plan.Shape, cudaops.String(l.Plan.Cards[0].Device))
	if l.Plan.Parts > 1 {
		p.Title.Text += fmt.Sprintf(", one of %d parts", l.Plan.Parts)
	}
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = "step of the program", "MiB"
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.Legend.YOffs = vg.Points(-4)

	steps := float64(len(l.Steps))
	base := 0.0
	m := l.Plan.Cards[0].Memory
	for _, band := range []struct {
		name  string
		bytes int64
		fill  color.Color
	}{
		{"parameters", m.Parameters, color.RGBA{0x33, 0x66, 0x99, 0xff}},
		{"gradients", m.Gradients, color.RGBA{0x66, 0x99, 0xcc, 0xff}},
		{"optimizer state", m.OptimizerState, color.RGBA{0x99, 0xbb, 0xdd, 0xff}},
		{"buffers", m.Buffers, color.RGBA{0xbb, 0xcc, 0xbb, 0xff}},
		{"inputs", m.Inputs, color.RGBA{0x88, 0xaa, 0x66, 0xff}},
		{"outputs and constants", m.Outputs + m.Constants, color.RGBA{0xbb, 0xbb, 0xbb, 0xff}},
	} {
		if band.bytes == 0 {
			continue
		}
		height := float64(band.bytes) / mib
		r := rectangle{0, base, steps, base + height, band.fill}
		p.Add(r)
		p.Legend.Add(fmt.Sprintf("%s, %s", band.name, cudaops.FormatSize(band.bytes)), r)
		base += height
	}
	for i, s := range l.Spans {
		from := base + float64(s.Offset)/mib
		r := rectangle{float64(s.From), from, float64(s.To) + 1, from + float64(s.Bytes)/mib, shade(i, len(l.Spans))}
		p.Add(r)
		if i == len(l.Spans)/2 {
			p.Legend.Add(fmt.Sprintf("activations and their gradients, %s", cudaops.FormatSize(m.Activations)), r)
		}
	}
	top := base + float64(m.Activations)/mib
	names := plotter.XYLabels{}
	for _, s := range l.Spans { // of what is large enough for its name
		if width, height := float64(s.To+1-s.From), float64(s.Bytes)/mib; width > steps/8 && height > top/30 {
			names.XYs = append(names.XYs, plotter.XY{X: float64(s.From) + width/2, Y: base + float64(s.Offset)/mib + height/2})
			names.Labels = append(names.Labels, l.Steps[s.From])
		}
	}
	inside, err := plotter.NewLabels(names)
	if err != nil {
		return err
	}
	for i := range inside.TextStyle {
		style := &inside.TextStyle[i]
		style.XAlign, style.YAlign, style.Font.Size = text.XCenter, text.YCenter, vg.Points(8)
	}
	p.Add(inside)
	at := float64(l.Peak) + 0.5
	line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: top}})
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = color.RGBA{0xcc, 0, 0, 0xff}, vg.Points(1.2), []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(line)
	label, err := plotter.NewLabels(plotter.XYLabels{
		XYs:    plotter.XYs{{X: at, Y: top}},
		Labels: []string{fmt.Sprintf("peak, step %d: %s, %s", l.Peak, l.Steps[l.Peak], cudaops.FormatSize(l.Bytes))},
	})
	if err != nil {
		return err
	}
	style := &label.TextStyle[0]
	style.Color, style.YAlign = line.Color, text.YBottom
	style.XAlign = text.XLeft
	if at > steps/2 {
		style.XAlign = text.XRight
	}
	p.Add(label)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, steps, 0, top*1.45 // with room for label and legend

	var b bytes.Buffer
	w, err := p.WriterTo(10*vg.Inch, 6*vg.Inch, "png")
	if err != nil {
		return err
	}
	if _, err := w.WriteTo(&b); err != nil {
		return err
	}
	return atomicfile.Write(path, b.Bytes())
}

// shade is the colour of value i of n: neighbours in time look alike, but not the same.
func shade(i, n int) color.Color {
	x := float64(i) / float64(max(n-1, 1))
	wave := func(phase float64) uint8 { return uint8(150 + 80*math.Sin(2*math.Pi*(0.8*x+phase)) + float64(i%2)*20) }
	return color.RGBA{wave(0.1), wave(0.85), wave(0.5), 0xff}
}

// rectangle is an area in the coordinates of the data.
type rectangle struct {
	x0, y0, x1, y1 float64
	fill           color.Color
}

// Plot draws the rectangle, with a thin border.
func (r rectangle) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	at := func(a, b float64) vg.Point { return vg.Point{X: x(a), Y: y(b)} }
	corners := []vg.Point{at(r.x0, r.y0), at(r.x1, r.y0), at(r.x1, r.y1), at(r.x0, r.y1)}
	c.FillPolygon(r.fill, corners)
	c.StrokeLines(draw.LineStyle{Color: color.White, Width: vg.Points(0.4)}, append(corners, corners[0]))
}

// Thumbnail draws it in the legend.
func (r rectangle) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(r.fill, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// checkPicture finds out before planning whether the picture's name is one of a PNG file.
func checkPicture(path string) error {
	if !strings.HasSuffix(strings.ToLower(path), ".png") {
		return usagef("--plan-png %s: want a file whose name ends in .png", path)
	}
	return nil
}
