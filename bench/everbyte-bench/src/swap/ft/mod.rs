//! FT of the NAS Parallel Benchmarks: a partial differential equation solved by Fourier transforms
//! in three dimensions.
//!
//! Written anew from the algorithm in "The NAS Parallel Benchmarks" (Bailey et al., RNR-94-007): a
//! random field is transformed once; each step multiplies it with a Gaussian, transforms it back and
//! sums up 1,024 of its points. The sums are compared with the ones that NASA published.
//!
//! Owns the schedule over the memory that it is lent. Knows no paging: who runs it learns by a
//! callback which part of the work is done.

mod class;
mod random;
mod transform;

use std::f64::consts::PI;

use anyhow::{Result, ensure};

pub(super) use class::Class;
use random::Random;
use transform::{Complex, Direction, Roots, Scratch};

use super::place::Words;

/// Columns that are transformed together, so that whole lines of cache are used.
const COLUMNS: usize = 16;
/// The diffusion coefficient of the equation.
const ALPHA: f64 = 1e-6;
/// Points that a checksum adds up.
const POINTS: usize = 1024;
/// Relative error that a checksum may have.
const TOLERANCE: f64 = 1e-12;
const COMPLEX_WORDS: usize = 2;

/// The parts of the work, by which costs are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Setup,
    Evolve,
    AlongX,
    AlongY,
    AlongZ,
    Checksum,
}

impl Part {
    pub(super) const ALL: [Self; 6] =
        [Self::Setup, Self::Evolve, Self::AlongX, Self::AlongY, Self::AlongZ, Self::Checksum];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Evolve => "evolve",
            Self::AlongX => "along x",
            Self::AlongY => "along y",
            Self::AlongZ => "along z",
            Self::Checksum => "checksum",
        }
    }
}

/// Points along each axis; x varies fastest in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grid {
    x: usize,
    y: usize,
    z: usize,
}

impl Grid {
    fn points(self) -> usize {
        self.x * self.y * self.z
    }
}

/// Words of memory that a class takes: two complex fields and a real one.
pub(super) fn words(class: Class) -> usize {
    class.grid().points() * (2 * COMPLEX_WORDS + 1)
}

/// The fields, in the memory that is to be paged.
struct Fields<'a> {
    grid: Grid,
    /// In the space of frequencies, as of the present step.
    spectrum: Words<'a>,
    /// In the space of points.
    field: Words<'a>,
    gaussian: Words<'a>,
    threads: usize,
}

/// Solves a class in `memory` and compares every checksum. `done` is told after each part.
///
/// # Errors
/// A checksum is wrong.
pub(super) fn solve(
    class: Class,
    memory: Words<'_>,
    threads: usize,
    mut done: impl FnMut(Part),
) -> Result<()> {
    let grid = class.grid();
    let complex = grid.points() * COMPLEX_WORDS;
    let (spectrum, rest) = memory.split_at(complex);
    let (field, gaussian) = rest.split_at(complex);
    let fields = Fields { grid, spectrum, field, gaussian, threads };
    fields.set_up();
    done(Part::Setup);
    fields.along_x(fields.field, Direction::Forward);
    done(Part::AlongX);
    fields.along_y(fields.field, Direction::Forward);
    done(Part::AlongY);
    fields.along_z(fields.field, fields.spectrum, Direction::Forward);
    done(Part::AlongZ);
    for (step, expected) in class.checksums().iter().enumerate() {
        fields.evolve();
        done(Part::Evolve);
        fields.along_z(fields.field, fields.field, Direction::Back);
        done(Part::AlongZ);
        fields.along_y(fields.field, Direction::Back);
        done(Part::AlongY);
        fields.along_x(fields.field, Direction::Back);
        done(Part::AlongX);
        let sum = fields.checksum();
        done(Part::Checksum);
        let error = |got: f64, want: f64| ((got - want) / want).abs();
        let is_right =
            error(sum.re, expected.re) <= TOLERANCE && error(sum.im, expected.im) <= TOLERANCE;
        ensure!(is_right, "step {} of FT.{class}: {sum:?} is not {expected:?}", step + 1);
    }
    Ok(())
}

impl Fields<'_> {
    /// Runs `work` for `0..count`, each thread an equal range of it.
    fn share(&self, count: usize, work: impl Fn(usize) + Sync) {
        let work = &work;
        let share = count.div_ceil(self.threads);
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let range = (thread * share).min(count)..((thread + 1) * share).min(count);
                scope.spawn(move || range.for_each(work));
            }
        });
    }

    /// Fills the field with random numbers, and computes the Gaussian.
    fn set_up(&self) {
        let Grid { x, y, z } = self.grid;
        let frequency = |at: usize, size: usize| {
            let shifted = (at + size / 2) % size;
            super::as_float(shifted) - super::as_float(size / 2)
        };
        self.share(z, |k| {
            let mut random = Random::after(2 * x * y * k);
            for at in k * x * y..(k + 1) * x * y {
                let re = random.next();
                put(self.field, at, Complex { re, im: random.next() });
            }
            for j in 0..y {
                for i in 0..x {
                    let square =
                        frequency(i, x).powi(2) + frequency(j, y).powi(2) + frequency(k, z).powi(2);
                    let value = (-4.0 * ALPHA * PI * PI * square).exp();
                    self.gaussian.store((k * y + j) * x + i, value.to_bits());
                }
            }
        });
    }

    /// One step of time, in the space of frequencies.
    fn evolve(&self) {
        let plane = self.grid.x * self.grid.y;
        self.share(self.grid.z, |k| {
            for at in k * plane..(k + 1) * plane {
                let factor = f64::from_bits(self.gaussian.load(at));
                let Complex { re, im } = get(self.spectrum, at);
                let value = Complex { re: re * factor, im: im * factor };
                put(self.spectrum, at, value);
                put(self.field, at, value);
            }
        });
    }

    fn along_x(&self, data: Words<'_>, direction: Direction) {
        let Grid { x, y, z } = self.grid;
        let roots = Roots::new(x);
        self.share(z, |k| {
            let mut scratch = Scratch::new(x, COLUMNS);
            for j in (0..y).step_by(COLUMNS) {
                let place = |at: usize, column: usize| (k * y + j + column) * x + at;
                scratch.fill_by_columns(|at, column| get(data, place(at, column)));
                scratch.transform(&roots, direction);
                scratch.drain_by_columns(|at, column, value| put(data, place(at, column), value));
            }
        });
    }

    fn along_y(&self, data: Words<'_>, direction: Direction) {
        let Grid { x, y, z } = self.grid;
        let roots = Roots::new(y);
        self.share(z, |k| {
            let mut scratch = Scratch::new(y, COLUMNS);
            for i in (0..x).step_by(COLUMNS) {
                let place = |at: usize, column: usize| (k * y + at) * x + i + column;
                scratch.fill(|at, column| get(data, place(at, column)));
                scratch.transform(&roots, direction);
                scratch.drain(|at, column, value| put(data, place(at, column), value));
            }
        });
    }

    fn along_z(&self, from: Words<'_>, to: Words<'_>, direction: Direction) {
        let Grid { x, y, z } = self.grid;
        let roots = Roots::new(z);
        self.share(y, |j| {
            let mut scratch = Scratch::new(z, COLUMNS);
            for i in (0..x).step_by(COLUMNS) {
                let place = |at: usize, column: usize| (at * y + j) * x + i + column;
                scratch.fill(|at, column| get(from, place(at, column)));
                scratch.transform(&roots, direction);
                scratch.drain(|at, column, value| put(to, place(at, column), value));
            }
        });
    }

    fn checksum(&self) -> Complex {
        let Grid { x, y, z } = self.grid;
        let mut sum = Complex { re: 0.0, im: 0.0 };
        for point in 1..=POINTS {
            let at = (5 * point % z * y + 3 * point % y) * x + point % x;
            let value = get(self.field, at);
            sum = Complex { re: sum.re + value.re, im: sum.im + value.im };
        }
        let count = super::as_float(self.grid.points());
        Complex { re: sum.re / count, im: sum.im / count }
    }
}

fn get(words: Words<'_>, at: usize) -> Complex {
    let load = |at| f64::from_bits(words.load(at));
    Complex { re: load(COMPLEX_WORDS * at), im: load(COMPLEX_WORDS * at + 1) }
}

fn put(words: Words<'_>, at: usize, value: Complex) {
    words.store(COMPLEX_WORDS * at, value.re.to_bits());
    words.store(COMPLEX_WORDS * at + 1, value.im.to_bits());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn memory(class: Class) -> Vec<AtomicU64> {
        std::iter::repeat_with(|| AtomicU64::new(0)).take(words(class)).collect()
    }

    #[test]
    fn class_s_has_published_checksums() {
        let memory = memory(Class::S);
        for threads in [1, 2] {
            let mut parts = Vec::new();
            solve(Class::S, Words::of(&memory), threads, |part| parts.push(part)).unwrap();
            assert_eq!(parts.len(), 4 + 5 * Class::S.checksums().len());
            assert!(Part::ALL.iter().all(|part| parts.contains(part)));
        }
    }

    #[test]
    fn lost_page_fails_checksums() {
        let memory = memory(Class::S);
        let mut evolved = false;
        let solved = solve(Class::S, Words::of(&memory), 1, |part| {
            if part == Part::Evolve && !std::mem::replace(&mut evolved, true) {
                (5120..5632).for_each(|word| Words::of(&memory).store(word, 0));
            }
        });
        assert!(solved.unwrap_err().to_string().starts_with("step"));
    }
}
