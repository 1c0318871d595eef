//! Discrete Fourier transforms of several columns at a time, by Stockham's algorithm: no permutation, two
//! buffers in turn.

use std::f64::consts::TAU;

use crate::stats::as_f64;

/// A complex number.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Complex {
    pub(super) re: f64,
    pub(super) im: f64,
}

/// Direction from points to frequencies, or back. Neither scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Forward,
    Back,
}

/// The roots of unity of a size. The size is a power of two.
pub(super) struct Roots(Vec<Complex>);

impl Roots {
    pub(super) fn new(size: usize) -> Self {
        let angle = |at: usize| TAU * as_f64(at as u64) / as_f64(size as u64);
        let root = |at| Complex { re: f64::cos(angle(at)), im: f64::sin(angle(at)) };
        Self((0..size / 2).map(root).collect())
    }
}

/// Columns of one transform, and a buffer of the same size.
pub(super) struct Scratch {
    values: Vec<Complex>,
    spare: Vec<Complex>,
    size: usize,
    columns: usize,
}

impl Scratch {
    /// `columns` columns of `size` numbers.
    pub(super) fn new(size: usize, columns: usize) -> Self {
        let zeroes = vec![Complex::default(); size * columns];
        Self { spare: zeroes.clone(), values: zeroes, size, columns }
    }

    /// Calls `work(row, column, value)` for each value, row by row or column by column.
    #[inline]
    pub(super) fn each(
        &mut self,
        by_columns: bool,
        mut work: impl FnMut(usize, usize, &mut Complex),
    ) {
        if by_columns {
            for column in 0..self.columns {
                for at in 0..self.size {
                    work(at, column, &mut self.values[at * self.columns + column]);
                }
            }
        } else {
            for (at, row) in self.values.chunks_mut(self.columns).enumerate() {
                row.iter_mut().enumerate().for_each(|(column, value)| work(at, column, value));
            }
        }
    }

    /// Transforms every column.
    pub(super) fn transform(&mut self, roots: &Roots, direction: Direction) {
        let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
        let half = self.size / 2 * self.columns;
        let mut groups = self.size / 2;
        let mut width = self.columns;
        while groups > 0 {
            let (upper, lower) = self.values.split_at(half);
            let pairs = upper.chunks_exact(width).zip(lower.chunks_exact(width));
            let outputs = self.spare.chunks_exact_mut(2 * width);
            let step = self.size / 2 / groups;
            for (group, ((above, below), output)) in pairs.zip(outputs).enumerate() {
                // The inverse transform uses the conjugate roots.
                let root = roots.0[group * step];
                let root = Complex { re: root.re, im: sign * root.im };
                let (sums, differences) = output.split_at_mut(width);
                butterfly(above, below, root, sums, differences);
            }
            // The output of a pass is the input of the next pass.
            std::mem::swap(&mut self.values, &mut self.spare);
            groups /= 2;
            width *= 2;
        }
    }
}

fn butterfly(
    above: &[Complex],
    below: &[Complex],
    root: Complex,
    sums: &mut [Complex],
    differences: &mut [Complex],
) {
    let inputs = above.iter().zip(below);
    for ((a, b), (sum, difference)) in inputs.zip(sums.iter_mut().zip(differences)) {
        *sum = Complex { re: a.re + b.re, im: a.im + b.im };
        let (re, im) = (a.re - b.re, a.im - b.im);
        *difference = Complex { re: root.re * re - root.im * im, im: root.re * im + root.im * re };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fft_matches_dft_and_has_inverse() {
        const SIZE: usize = 16;
        let value = |at: usize, column: usize| Complex {
            re: f64::from(u32::try_from(at * 7 % 5).unwrap()),
            im: f64::from(u32::try_from(column + at % 3).unwrap()),
        };
        let mut scratch = Scratch::new(SIZE, 2);
        scratch.each(false, |at, column, into| *into = value(at, column));
        let roots = Roots::new(SIZE);
        scratch.transform(&roots, Direction::Forward);
        scratch.each(false, |frequency, column, got| {
            let mut sum = Complex { re: 0.0, im: 0.0 };
            for at in 0..SIZE {
                let turns = u32::try_from(at * frequency % SIZE).unwrap();
                let angle = TAU * f64::from(turns) / 16.0;
                let Complex { re, im } = value(at, column);
                sum.re += re * angle.cos() - im * angle.sin();
                sum.im += re * angle.sin() + im * angle.cos();
            }
            assert!((got.re - sum.re).abs() < 1e-9 && (got.im - sum.im).abs() < 1e-9);
        });
        scratch.transform(&roots, Direction::Back);
        scratch.each(true, |at, column, got| {
            let Complex { re, im } = value(at, column);
            assert!((got.re / 16.0 - re).abs() < 1e-12 && (got.im / 16.0 - im).abs() < 1e-12);
        });
    }
}
