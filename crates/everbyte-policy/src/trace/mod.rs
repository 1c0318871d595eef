//! Traces: readers of the usual formats, our own format, and generators.
