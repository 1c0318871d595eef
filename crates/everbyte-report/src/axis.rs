//! Scales of axes: their range, the few places with a grid line, and the numbers there.

/// Ticks of a linear axis at most, its ends included.
const TICKS_MAX: u32 = 5;
/// Decades of a logarithmic axis that have a label at most.
const DECADES_MAX: i32 = 5;
/// Share of the largest value from which on an axis of lines need not begin at zero.
const FAR_FROM_ZERO: f64 = 0.6;

/// Growth of values along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Equal steps add.
    Linear,
    /// Equal steps multiply. Values of zero and less have no place.
    Logarithmic,
}

/// An axis with its range.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis for `values`, from zero on if it is linear and `from_zero` says so; `None` if no value
    /// has a place.
    pub(crate) fn over(
        scale: Scale,
        from_zero: bool,
        values: impl Iterator<Item = f64>,
    ) -> Option<Self> {
        // A logarithm has no place for zero, and no axis has one for an infinity.
        let has_place = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (low, high) = values
            .filter(has_place)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            return None;
        }
        match scale {
            Scale::Linear => Some(Self::linear(low, high, from_zero)),
            Scale::Logarithmic => Some(Self::logarithmic(low, high)),
        }
    }

    fn linear(low: f64, high: f64, from_zero: bool) -> Self {
        // Lines far above zero would be flat on an axis from zero.
        let is_far = !from_zero && low > FAR_FROM_ZERO * high;
        let low = if is_far { low } else { low.min(0.0) };
        let high = high.max(0.0);
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let step = nice_step(span);
        // Whole steps beyond the values at both ends, so that a line never ends at the edge.
        let (first, last) = ((low / step).floor(), ((low + span) / step).ceil());
        let mut ticks = Vec::new();
        let mut at = first;
        while at <= last {
            ticks.push((at * step, label(at * step, step)));
            at += 1.0;
        }
        Self { scale: Scale::Linear, low: first * step, high: last * step, ticks }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor(), high.log10().ceil());
        // A single decade has no height: one more decade gives the values a place.
        let last = if last > first { last } else { first + 1.0 };
        let mut ticks = Vec::new();
        let (mut at, mut decade) = (first, 0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a finite number has below 700 decades"
        )]
        let stride = ((last - first) as i32 / DECADES_MAX + 1).max(1);
        while at <= last {
            if decade % stride == 0 {
                let value = 10_f64.powf(at);
                ticks.push((value, label(value, value)));
            }
            (at, decade) = (at + 1.0, decade + 1);
        }
        Self { scale: Scale::Logarithmic, low: 10_f64.powf(first), high: 10_f64.powf(last), ticks }
    }

    /// The place of a value, from 0 to 100; `None` outside of the axis.
    pub(crate) fn percent(&self, value: f64) -> Option<f64> {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic if value > 0.0 => {
                (value / self.low).log10() / (self.high / self.low).log10()
            }
            Scale::Logarithmic => return None,
        };
        // Values at the edge may miss it by a rounding.
        (-0.001..=1.001).contains(&part).then_some(100.0 * part)
    }

    /// Places of grid lines, from 0 to 100, and the words at them.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = (f64, &str)> {
        self.ticks.iter().filter_map(|(value, words)| Some((self.percent(*value)?, words.as_str())))
    }
}

/// A step of 1, 2 or 5 times a power of ten, of which about four make `span`.
fn nice_step(span: f64) -> f64 {
    let rough = span / f64::from(TICKS_MAX - 1);
    let power = 10_f64.powf(rough.log10().floor());
    // 2.5 below 10 would need a decimal on every label.
    let fits = |factor: &f64| factor * power >= rough * 0.999 && (*factor != 2.5 || power >= 10.0);
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(fits);
    factor.unwrap_or(10.0) * power
}

/// A number with the decimals that `step` needs, and with k, M, G or T for thousands.
fn label(value: f64, step: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
    // Slightly below the unit: the sum of steps may miss it by a rounding.
    let unit = units.iter().find(|(unit, _)| value.abs() >= *unit * 0.999_999);
    let (scale, suffix) = unit.map_or((1.0, ""), |(scale, suffix)| (scale.min(1e3), *suffix));
    let scale = match suffix {
        "k" | "" => scale,
        _ => unit.map_or(1.0, |(scale, _)| *scale),
    };
    let (value, step) = (value / scale, step / scale);
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 1e-4 || value.abs() >= 1e6 {
        return format!("{value:.0e}");
    }
    let mut decimals = 0;
    let mut rest = step;
    // As many decimals as the step needs, so that neighbouring labels differ.
    while decimals < 6 && (rest - rest.round()).abs() > 1e-6 * rest.abs().max(1e-9) {
        rest *= 10.0;
        decimals += 1;
    }
    let digits = format!("{value:.decimals$}");
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    format!("{digits}{suffix}")
}

/// Returns a number with about three significant digits.
#[must_use]
pub fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(scale: Scale, from_zero: bool, values: &[f64]) -> Vec<String> {
        let axis = Axis::over(scale, from_zero, values.iter().copied()).unwrap();
        axis.ticks().map(|(_, words)| words.to_owned()).collect()
    }

    #[test]
    fn whole_numbers_have_no_decimals() {
        assert_eq!(words(Scale::Linear, true, &[100.0]), ["0", "25", "50", "75", "100"]);
        assert_eq!(words(Scale::Linear, true, &[7.0]), ["0", "2", "4", "6", "8"]);
        assert_eq!(words(Scale::Linear, true, &[0.9]), ["0", "0.5", "1"]);
        assert_eq!(words(Scale::Linear, false, &[95.0, 99.0]), ["95", "96", "97", "98", "99"]);
        assert_eq!(words(Scale::Linear, true, &[38_000.0]), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(words(Scale::Linear, true, &[0.0]), ["0", "0.5", "1"]);
    }

    #[test]
    fn decades_alone_have_labels() {
        assert_eq!(words(Scale::Logarithmic, true, &[3.0, 400.0]), ["1", "10", "100", "1000"]);
        assert_eq!(words(Scale::Logarithmic, true, &[0.02, 0.5]), ["0.01", "0.1", "1"]);
        assert!(words(Scale::Logarithmic, true, &[1e-9, 1e9]).len() <= 6);
        assert_eq!(words(Scale::Logarithmic, true, &[2e6]), ["1M", "10M"]);
    }

    #[test]
    fn axes_have_few_lines_and_keep_all_values() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            for from_zero in [true, false] {
                for exponent in -30..30 {
                    for low in [0.001, 0.3, 0.97, 1.0] {
                        let high = 3.7 * 10_f64.powi(exponent);
                        let values = [low * high, high];
                        let axis = Axis::over(scale, from_zero, values.into_iter()).unwrap();
                        let ticks = axis.ticks().count();
                        assert!((2..=7).contains(&ticks), "{axis:?}");
                        let places = values.map(|value| axis.percent(value));
                        assert!(places.iter().all(Option::is_some), "{axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_without_a_place_have_no_axis() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            assert_eq!(Axis::over(scale, true, std::iter::empty()), None);
            assert_eq!(Axis::over(scale, true, [f64::NAN, f64::INFINITY].into_iter()), None);
        }
        assert_eq!(Axis::over(Scale::Logarithmic, true, [0.0, -1.0].into_iter()), None);
    }

    #[test]
    fn figures_are_short() {
        let texts = [1234.5, 12.345, 1.2345, -0.5].map(short);
        assert_eq!(texts, ["1234", "12.3", "1.23", "-0.50"]);
    }
}
