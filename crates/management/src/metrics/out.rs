//! The encoder, with the few forms that metrics have here.
//!
//! Invariant: what is told one by one and what is told as a sum is the same table of rows, so a sum
//! is that of its parts.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;

/// Labels of a sample.
pub(super) type Labels<'l> = Vec<(&'static str, &'l str)>;

/// What a metric is called and what it is, without the prefix of its page.
#[derive(Clone, Copy)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) is_counter: bool,
}

/// A counter; its samples end in `_total`, which the encoder adds.
pub(super) const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, is_counter: true }
}

/// A gauge.
pub(super) const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, is_counter: false }
}

pub(super) struct Out<'e> {
    pub(super) encoder: DescriptorEncoder<'e>,
    /// What names begin with.
    pub(super) prefix: &'static str,
    /// Rows are told one by one.
    pub(super) is_each: bool,
    /// The name that is being told.
    pub(super) name: String,
}

impl Out<'_> {
    fn begin(&mut self, metric: Metric) -> Result<MetricEncoder<'_>, Error> {
        self.name = format!("{}{}", self.prefix, metric.name);
        let kind = if metric.is_counter { MetricType::Counter } else { MetricType::Gauge };
        self.encoder.encode_descriptor(&self.name, metric.help, None, kind)
    }

    /// One sample without labels.
    pub(super) fn one(&mut self, metric: Metric, value: u64) -> Result<(), Error> {
        sample(metric.is_counter, value, self.begin(metric)?)
    }

    /// The same with a fraction.
    pub(super) fn real(&mut self, metric: Metric, value: f64) -> Result<(), Error> {
        let encoder = self.begin(metric)?;
        match metric.is_counter {
            true => ConstCounter::new(value).encode(encoder),
            false => ConstGauge::new(value).encode(encoder),
        }
    }

    /// A sample if there is something to tell.
    pub(super) fn maybe(&mut self, metric: Metric, value: Option<u64>) -> Result<(), Error> {
        value.map_or(Ok(()), |value| self.one(metric, value))
    }

    /// Samples with labels.
    pub(super) fn labelled<'l>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> Result<(), Error> {
        let mut encoder = self.begin(metric)?;
        for (labels, value) in samples {
            sample(metric.is_counter, value, encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A sample of each row, or their sum. A row without a value is left out.
    pub(super) fn rows<'l>(
        &mut self,
        metric: Metric,
        rows: impl Iterator<Item = (Labels<'l>, Option<u64>)>,
    ) -> Result<(), Error> {
        match self.is_each {
            true => self.labelled(metric, rows.filter_map(|(labels, value)| Some((labels, value?)))),
            false => self.one(metric, rows.filter_map(|(_, value)| value).fold(0, u64::saturating_add)),
        }
    }
}

fn sample(is_counter: bool, value: u64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
    match is_counter {
        true => ConstCounter::new(value).encode(encoder),
        false => ConstGauge::new(value).encode(encoder),
    }
}
