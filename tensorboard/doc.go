// Package tensorboard writes event files, which TensorBoard shows as curves.
//
//	w, err := tensorboard.Create("runs/first")
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, w.Close()) }()
//	for step := range steps {
//		...
//		if err := w.Scalar("loss/train", step, loss); err != nil {
//			return err
//		}
//	}
//
// and then
//
//	tensorboard --logdir runs
//
// A folder is a run, a curve of the page a tag; tags with the same word before the first slash stand together. Each [Writer] makes a file of
// its own, so that a run that is gone on with adds to the curves of its folder.
//
// What is written can be seen some seconds later, and all of it after [Writer.Close]. A process that is killed leaves a file whose last
// event may be cut off, which TensorBoard knows how to read.
//
// A Writer may be used from several goroutines at once.
//
// # The format
//
// A file is a sequence of records as TensorFlow has them: length, checksum of the length, contents, checksum of the contents
// ([appendRecord]). The contents are messages of protocol buffers, called Event, of which this package writes two kinds: the version of the
// format, once at the start, and numbers with a tag, a step and a time ([appendScalar]).
package tensorboard
