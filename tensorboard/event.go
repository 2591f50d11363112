package tensorboard

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields, as tensorboard/compat/proto has them in event.proto and summary.proto.
const (
	eventWallTime    = 1 // double: seconds since 1970
	eventStep        = 2 // int64
	eventFileVersion = 3 // string
	eventSummary     = 5 // Summary

	summaryValue = 1 // Summary.Value, repeated

	valueTag    = 1 // string
	valueSimple = 2 // float
)

// fileVersion is the format's version, in the first event of a file.
const fileVersion = "brain.Event:2"

func appendVersion(b []byte, at time.Time) []byte {
	b = appendTime(b, at)
	b = protowire.AppendTag(b, eventFileVersion, protowire.BytesType)
	return protowire.AppendString(b, fileVersion)
}

// appendScalar appends an event with one number.
func appendScalar(b []byte, at time.Time, tag string, step int, value float64) []byte {
	number := protowire.AppendTag(nil, valueTag, protowire.BytesType)
	number = protowire.AppendString(number, tag)
	number = protowire.AppendTag(number, valueSimple, protowire.Fixed32Type)
	number = protowire.AppendFixed32(number, math.Float32bits(float32(value)))

	summary := protowire.AppendTag(nil, summaryValue, protowire.BytesType)
	summary = protowire.AppendBytes(summary, number)

	b = appendTime(b, at)
	if step != 0 { // which is what a missing field means
		b = protowire.AppendTag(b, eventStep, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(step))
	}
	b = protowire.AppendTag(b, eventSummary, protowire.BytesType)
	return protowire.AppendBytes(b, summary)
}

func appendTime(b []byte, at time.Time) []byte {
	b = protowire.AppendTag(b, eventWallTime, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(float64(at.UnixNano())/1e9))
}

// appendRecord appends a record with an event in it.
func appendRecord(b, event []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(event)))
	b = binary.LittleEndian.AppendUint32(b, masked(b[start:]))
	b = append(b, event...)
	return binary.LittleEndian.AppendUint32(b, masked(event))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is a checksum that stays one where what it is of has checksums in it: CRC-32C, turned by 15 bits, and a constant.
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
