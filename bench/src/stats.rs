//! The few statistics of the report.

/// Median and range of the rounds of one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// All of it as multiples of a value.
    pub(crate) fn over(self, one: f64) -> Self {
        Self { median: self.median / one, min: self.min / one, max: self.max / one }
    }
}

/// `None` if there are no values.
pub(crate) fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let upper = sorted[sorted.len() / 2];
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(Summary { median: f64::midpoint(lower, upper), min, max })
}

/// Median over the rounds of `value / reference` of the same round.
///
/// Not the ratio of the medians: two figures of one round were taken within seconds of each other,
/// so what the machine did meanwhile cancels. A round that lacks either figure does not count.
pub(crate) fn median_ratio(values: &[(usize, f64)], references: &[(usize, f64)]) -> Option<f64> {
    let ratios: Vec<f64> = values
        .iter()
        .filter_map(|&(round, value)| {
            let &(_, reference) = references.iter().find(|&&(other, _)| other == round)?;
            (reference > 0.0).then(|| value / reference)
        })
        .collect();
    summary(&ratios).map(|ratios| ratios.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_odd_number_is_the_middle_one() {
        let found = summary(&[3.0, 1.0, 2.0]).expect("there are values");
        assert_eq!((found.median, found.min, found.max), (2.0, 1.0, 3.0));
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_ones() {
        assert_eq!(summary(&[4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn ratio_is_taken_within_rounds() {
        // The machine was twice as fast in round 1; the ratio of 0.5 is the same in all of them.
        let values = [(0, 50.0), (1, 100.0), (2, 51.0)];
        let references = [(0, 100.0), (1, 200.0), (2, 102.0)];
        assert_eq!(median_ratio(&values, &references), Some(0.5));
    }

    #[test]
    fn ratio_leaves_out_rounds_without_a_partner() {
        assert_eq!(median_ratio(&[(0, 1.0), (1, 9.0)], &[(0, 2.0), (2, 1.0)]), Some(0.5));
        assert_eq!(median_ratio(&[(0, 1.0)], &[]), None);
    }
}
