//! FT of the NAS Parallel Benchmarks: a partial differential equation, solved by Fourier transforms in three
//! dimensions.
//!
//! The code follows the algorithm in "The NAS Parallel Benchmarks" (Bailey et al., RNR-94-007). A random field is
//! transformed once. Each step multiplies it with a Gaussian, transforms it back and adds up 1,024 of its
//! points. `checksums.txt` has the published sum of each step by class. FT uses only the lent memory and does
//! not know how the memory is paged.

mod transform;

use std::f64::consts::PI;

use anyhow::{Result, ensure};

use transform::{Complex, Direction, Roots, Scratch};

use super::words::Words;
use crate::stats::as_f64;

/// Columns in one transform. They fill whole cache lines.
const COLUMNS: usize = 16;
/// Diffusion coefficient of the equation.
const ALPHA: f64 = 1e-6;
/// Points in a checksum.
const POINTS: usize = 1024;
/// Maximum relative error of a checksum.
const TOLERANCE: f64 = 1e-12;
const COMPLEX_WORDS: usize = 2;
/// Published checksums: class, real part and imaginary part of each step.
const CHECKSUMS: &str = include_str!("checksums.txt");
/// Seed and factor of the random numbers of the NAS Parallel Benchmarks, a linear congruential generator
/// modulo 2^46.
const SEED: u64 = 314_159_265;
const FACTOR: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;
/// 2^-46.
const SCALE: f64 = 1.0 / 70_368_744_177_664.0;

/// Size of the problem.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
pub(super) enum Class {
    /// 10 MiB.
    S,
    /// 20 MiB.
    W,
    /// 320 MiB.
    A,
    /// 1,280 MiB, 20 steps.
    B,
}

impl Class {
    /// Points along x, y and z. x varies fastest in memory.
    fn sizes(self) -> [usize; 3] {
        match self {
            Self::S => [64, 64, 64],
            Self::W => [128, 128, 32],
            Self::A => [256, 256, 128],
            Self::B => [512, 256, 256],
        }
    }

    fn points(self) -> usize {
        self.sizes().iter().product()
    }

    /// Words of memory: two complex fields and a real field.
    pub(super) fn words(self) -> usize {
        self.points() * (2 * COMPLEX_WORDS + 1)
    }

    /// The published checksum of each step.
    fn checksums(self) -> impl Iterator<Item = Complex> {
        CHECKSUMS.lines().filter_map(move |line| {
            let numbers = line.strip_prefix(&format!("{self:?} "))?;
            let (re, im) = numbers.split_once(' ')?;
            Some(Complex { re: re.parse().ok()?, im: im.parse().ok()? })
        })
    }
}

/// Stream of random numbers above 0 and below 1.
struct Random(u64);

impl Random {
    /// Returns the stream after `steps` numbers.
    fn after(steps: usize) -> Self {
        let (mut state, mut power, mut left) = (SEED, FACTOR, steps);
        while left > 0 {
            if left % 2 == 1 {
                state = state.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            left /= 2;
        }
        Self(state)
    }

    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(FACTOR) & MASK;
        as_f64(self.0) * SCALE
    }
}

/// The fields in paged memory.
struct Fields<'a> {
    class: Class,
    /// In the space of frequencies, as of the present step.
    spectrum: Words<'a>,
    /// In the space of points.
    field: Words<'a>,
    gaussian: Words<'a>,
    threads: usize,
}

/// Solves a class in `memory` and compares every checksum.
///
/// # Errors
/// A checksum is wrong.
pub(super) fn solve(class: Class, memory: Words<'_>, threads: usize) -> Result<()> {
    let fields = Fields::new(class, memory, threads);
    fields.begin();
    fields.steps()
}

impl<'a> Fields<'a> {
    fn new(class: Class, memory: Words<'a>, threads: usize) -> Self {
        let complex = class.points() * COMPLEX_WORDS;
        let (spectrum, rest) = memory.split_at(complex);
        let (field, gaussian) = rest.split_at(complex);
        Self { class, spectrum, field, gaussian, threads }
    }

    /// Computes the spectrum of a random field.
    fn begin(&self) {
        self.set_up();
        self.along(0, self.field, self.field, Direction::Forward);
        self.along(1, self.field, self.field, Direction::Forward);
        // The last transform writes to the spectrum, so no copy is needed.
        self.along(2, self.field, self.spectrum, Direction::Forward);
    }

    fn steps(&self) -> Result<()> {
        for (step, expected) in self.class.checksums().enumerate() {
            self.evolve();
            // The reverse order of the forward transforms, as in the specification.
            for axis in [2, 1, 0] {
                self.along(axis, self.field, self.field, Direction::Back);
            }
            let sum = self.checksum();
            let error = |got: f64, want: f64| ((got - want) / want).abs();
            let is_right =
                error(sum.re, expected.re) <= TOLERANCE && error(sum.im, expected.im) <= TOLERANCE;
            let class = self.class;
            ensure!(is_right, "step {} of FT.{class:?}: {sum:?} is not {expected:?}", step + 1);
        }
        Ok(())
    }

    /// Runs `work` for `0..count`. Each thread gets an equal range.
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
        let [x, y, z] = self.class.sizes();
        let square = |at: usize, size: usize| {
            // The upper half of the indices are the negative frequencies.
            let shifted = (at + size / 2) % size;
            (as_f64(shifted as u64) - as_f64(size as u64 / 2)).powi(2)
        };
        self.share(z, |k| {
            // Each plane seeks in the stream, so the numbers do not depend on the number of threads.
            let mut random = Random::after(2 * x * y * k);
            for at in k * x * y..(k + 1) * x * y {
                let re = random.next();
                put(self.field, at, Complex { re, im: random.next() });
            }
            for j in 0..y {
                for i in 0..x {
                    let square = square(i, x) + square(j, y) + square(k, z);
                    let value = (-4.0 * ALPHA * PI * PI * square).exp();
                    self.gaussian.store((k * y + j) * x + i, value.to_bits());
                }
            }
        });
    }

    /// Computes one step of time in the space of frequencies.
    fn evolve(&self) {
        let [x, y, z] = self.class.sizes();
        self.share(z, |k| {
            for at in k * x * y..(k + 1) * x * y {
                let factor = f64::from_bits(self.gaussian.load(at));
                let Complex { re, im } = get(self.spectrum, at);
                let value = Complex { re: re * factor, im: im * factor };
                // The spectrum keeps the step for the next step; the transforms overwrite the field.
                put(self.spectrum, at, value);
                put(self.field, at, value);
            }
        });
    }

    /// Transforms all lines along one axis: 0 for x, 1 for y, 2 for z.
    fn along(&self, axis: usize, from: Words<'_>, to: Words<'_>, direction: Direction) {
        let sizes = self.class.sizes();
        let strides = [1, sizes[0], sizes[0] * sizes[1]];
        let (column, plane) = [(1, 2), (0, 2), (0, 1)][axis];
        let roots = Roots::new(sizes[axis]);
        self.share(sizes[plane], |k| {
            let mut scratch = Scratch::new(sizes[axis], COLUMNS);
            let (stride, next) = (strides[axis], strides[column]);
            for first in (0..sizes[column]).step_by(COLUMNS) {
                let start = k * strides[plane] + first * next;
                let place = |at: usize, nth: usize| start + at * stride + nth * next;
                // Lines along x are adjacent in memory, so x is read line by line.
                scratch.each(axis == 0, |at, nth, value| *value = get(from, place(at, nth)));
                scratch.transform(&roots, direction);
                scratch.each(axis == 0, |at, nth, value| put(to, place(at, nth), *value));
            }
        });
    }

    fn checksum(&self) -> Complex {
        let [x, y, z] = self.class.sizes();
        let mut sum = Complex::default();
        for point in 1..=POINTS {
            let at = (5 * point % z * y + 3 * point % y) * x + point % x;
            let value = get(self.field, at);
            sum = Complex { re: sum.re + value.re, im: sum.im + value.im };
        }
        let count = as_f64(self.class.points() as u64);
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
        std::iter::repeat_with(|| AtomicU64::new(0)).take(class.words()).collect()
    }

    #[test]
    fn checksums_exist_for_each_step() {
        let steps = [Class::S, Class::W, Class::A, Class::B].map(|class| class.checksums().count());
        assert_eq!(steps, [6, 6, 6, 20]);
    }

    #[test]
    fn class_s_has_published_checksums() {
        let memory = memory(Class::S);
        for threads in [1, 2] {
            solve(Class::S, Words::of(&memory), threads).unwrap();
        }
    }

    #[test]
    fn lost_page_fails_checksums() {
        let memory = memory(Class::S);
        let words = Words::of(&memory);
        let fields = Fields::new(Class::S, words, 1);
        fields.begin();
        (5120..5632).for_each(|word| words.store(word, 0));
        assert!(fields.steps().unwrap_err().to_string().starts_with("step"));
    }

    #[test]
    fn random_stream_seeks() {
        let mut random = Random::after(0);
        for steps in 0..100 {
            let ahead = Random::after(steps).next();
            assert_eq!(random.next().to_bits(), ahead.to_bits());
        }
    }
}
