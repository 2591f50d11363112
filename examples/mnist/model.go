package main

import (
	"strings"

	"github.com/tandem-train/tandem/nn"
)

// classes is the number of digits.
const classes = 10

// network is a model that the command can train. It takes images [N, 1, 28, 28] and gives logits [N, 10].
type network struct {
	name, about string
	build       func() nn.Module
}

// networks are the values of --model, the default first.
var networks = []network{
	{"mlp", "three linear layers, 784-512-512-10", func() nn.Module {
		return nn.Sequential(
			nn.Flatten(),
			nn.Linear(imageSize, 512), nn.ReLU(),
			nn.Linear(512, 512), nn.ReLU(),
			nn.Linear(512, classes),
		)
	}},
	{"cnn", "two 3x3 convolutions of 32 and 64 channels, two linear layers, dropout", func() nn.Module {
		return nn.Sequential(
			nn.Conv2d(1, 32, 3), nn.ReLU(), // [N, 32, 26, 26]
			nn.Conv2d(32, 64, 3), nn.ReLU(), // [N, 64, 24, 24]
			nn.MaxPool2d(2), // [N, 64, 12, 12]
			nn.Dropout(0.25),
			nn.Flatten(), // [N, 9216]
			nn.Linear(9216, 128), nn.ReLU(),
			nn.Dropout(0.5),
			nn.Linear(128, classes),
		)
	}},
}

// newModel builds the network of a name that --model accepts.
func newModel(name string) nn.Module {
	for _, n := range networks {
		if n.name == name {
			return n.build()
		}
	}
	panic("mnist: no network " + name + " in spite of the flag's check")
}

func modelNames() []string {
	names := make([]string, len(networks))
	for i, n := range networks {
		names[i] = n.name
	}
	return names
}

func modelHelp() string {
	lines := make([]string, len(networks))
	for i, n := range networks {
		lines[i] = n.name + " (" + n.about + ")"
	}
	return strings.Join(lines, " or ")
}
