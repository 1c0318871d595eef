//! The file system against a model of what it should do, over random operations, reopenings and
//! crashes.

mod counters;
mod crash;
mod model;
mod operations;
mod random;
mod real;
