// Package testhook lets package cudaopstest reach into package cudaops.
package testhook

// Reset makes cudaops forget its cards, so that the next call reads the
// environment again; hideReal is whether it shall see simulated cards only.
// Package cudaops sets it.
var Reset func(hideReal bool)
