//! From values to places on an axis, and the round values that are marked there.

/// From values to places between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) log: bool,
    least: f64,
    most: f64,
}

impl Axis {
    /// Between two values, logarithmic or not.
    pub(crate) const fn between(least: f64, most: f64, log: bool) -> Self {
        Self { log, least, most }
    }

    /// What is beyond an end is at that end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.least, self.most);
        if self.log {
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        }
    }
}

/// From this ratio on, the shorter bars of a linear axis cannot be told apart.
#[cfg(any(test, feature = "plot"))]
const LOG_FROM: f64 = 20.0;

/// An axis that goes by what is to be drawn.
#[cfg(any(test, feature = "plot"))]
impl Axis {
    /// For bars that range from the first to the second of each pair; by logarithms if they are far apart.
    pub(crate) fn of(ranges: impl Iterator<Item = (f64, f64)>) -> Self {
        let (mut smallest, mut most) = (f64::INFINITY, 0.0_f64);
        for (min, max) in ranges {
            most = most.max(max);
            // A logarithm has no place for zero, which a short measurement may well show.
            if min > 0.0 {
                smallest = smallest.min(min);
            }
        }
        let log = most / smallest > LOG_FROM;
        // A bar begins at a round number well below the shortest, as it has no other length than that.
        let least = if log { 10.0_f64.powf((smallest / 2.0).log10().floor()) } else { 0.0 };
        Self { log, least, most: if most > 0.0 { most } else { 1.0 } }
    }

    /// Round values to put on it.
    pub(crate) fn marks(&self) -> Vec<f64> {
        if self.log {
            let decades = std::iter::successors(Some(self.least), |mark| Some(mark * 10.0));
            return decades.take_while(|&mark| mark <= self.most).collect();
        }
        let decade = 10.0_f64.powf(self.most.log10().floor());
        let step = [0.2, 0.5, 1.0, 2.0].map(|part| part * decade).into_iter().find(|step| self.most / step <= 5.0);
        let step = step.unwrap_or(decade * 2.0);
        (0..=5).map(|count| f64::from(count) * step).take_while(|&mark| mark <= self.most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_values_are_drawn_from_zero_on() {
        let axis = Axis::of([(100.0, 100.0), (400.0, 400.0)].into_iter());
        assert_eq!((axis.place(0.0), axis.place(100.0), axis.place(400.0)), (0.0, 0.25, 1.0));
        assert_eq!(axis.marks(), [0.0, 100.0, 200.0, 300.0, 400.0]);
    }

    #[test]
    fn values_far_apart_are_drawn_by_their_logarithm() {
        let axis = Axis::of([(0.0, 0.0), (1_000.0, 1_000.0), (100_000.0, 100_000.0)].into_iter());
        assert!(axis.log);
        assert_eq!(axis.place(0.0), 0.0);
        assert!(axis.place(1_000.0) > 0.2);
        assert_eq!(axis.marks(), [100.0, 1_000.0, 10_000.0, 100_000.0]);
    }

    #[test]
    fn what_is_beyond_an_end_is_at_that_end() {
        for axis in [Axis::between(0.5, 10.0, true), Axis::between(0.5, 10.0, false)] {
            assert_eq!([0.0, 0.5, 10.0, 11.0].map(|value| axis.place(value)), [0.0, 0.0, 1.0, 1.0]);
        }
    }
}
