//! The writer of metrics in both formats that Prometheus reads: OpenMetrics 1.0.0, and the text
//! format 0.0.4. They differ in the name of a counter's heading, in units, in the type of
//! constants, and in the end of the text.

use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    OpenMetrics,
    /// The text format 0.0.4, for clients that do not ask for the other.
    Text,
}

impl MetricsFormat {
    /// The media type. Prometheus 3 refuses a reply without it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that goes up and down.
    Gauge,
    /// A sum since the start. The names of its samples end with `_total`.
    Counter,
    /// A constant 1 with labels that have the information. The names of its samples end with
    /// `_info`.
    Info,
}

impl MetricKind {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Gauge => "",
            Self::Counter => "_total",
            Self::Info => "_info",
        }
    }

    const fn name(self, format: MetricsFormat) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Info, MetricsFormat::OpenMetrics) => "info",
            (Self::Gauge | Self::Info, _) => "gauge",
        }
    }
}

/// A metric: samples of one name, which differ in their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricFamily {
    /// The name, with the unit at its end and without the suffix of the type.
    pub name: &'static str,
    pub kind: MetricKind,
    /// The base unit, if it has one.
    pub unit: Option<&'static str>,
    /// The meaning, without a full stop.
    pub help: &'static str,
}

impl MetricFamily {
    /// The name of the samples, by which queries find them.
    pub fn sample_name(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }
}

/// A number of a sample, as both formats write it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    Count(u64),
    Real(f64),
}

impl From<u64> for MetricValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for MetricValue {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<bool> for MetricValue {
    fn from(is_so: bool) -> Self {
        Self::Count(is_so.into())
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

pub struct Exposition {
    format: MetricsFormat,
    text: String,
}

impl Exposition {
    pub fn new(format: MetricsFormat, bytes: usize) -> Self {
        Self { format, text: String::with_capacity(bytes) }
    }

    /// Writes the heading of a family. The caller then adds the samples. Each family is written
    /// once.
    pub fn family(&mut self, family: &MetricFamily) -> Samples<'_> {
        let (format, text) = (self.format, &mut self.text);
        let MetricFamily { name, kind, unit, help } = family;
        let heading = match format {
            MetricsFormat::OpenMetrics => (*name).to_owned(),
            MetricsFormat::Text => family.sample_name(),
        };
        let kind_name = kind.name(format);
        let _ = writeln!(text, "# HELP {heading} {help}\n# TYPE {heading} {kind_name}");
        if let (Some(unit), MetricsFormat::OpenMetrics) = (unit, format) {
            let _ = writeln!(text, "# UNIT {heading} {unit}");
        }
        Samples { text, name: family.sample_name() }
    }

    pub fn finish(mut self) -> String {
        if self.format == MetricsFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

pub struct Samples<'a> {
    text: &'a mut String,
    name: String,
}

impl Samples<'_> {
    /// Adds a sample. Its labels have to differ from those of the family's other samples.
    pub fn add(&mut self, labels: &[(&str, &str)], value: impl Into<MetricValue>) -> &mut Self {
        self.text.push_str(&self.name);
        for (nth, (label, text)) in labels.iter().enumerate() {
            self.text.push(if nth == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(self.text, text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = match value.into() {
            MetricValue::Count(count) => writeln!(self.text, " {count}"),
            MetricValue::Real(value) => writeln!(self.text, " {value:?}"),
        };
        self
    }
}

/// Appends a value of a label, with the escapes that both formats have.
fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [MetricFamily; 3] = [
        MetricFamily {
            name: "pollux_x_seconds",
            kind: MetricKind::Counter,
            unit: Some("seconds"),
            help: "Time",
        },
        MetricFamily { name: "pollux_up", kind: MetricKind::Gauge, unit: None, help: "State" },
        MetricFamily { name: "pollux_y", kind: MetricKind::Info, unit: None, help: "Constant" },
    ];

    fn written(format: MetricsFormat) -> String {
        let mut out = Exposition::new(format, 0);
        let [time, up, info] = &FAMILIES;
        out.family(time).add(&[("worker", "0")], 0.25).add(&[("worker", "1")], 1e-7);
        out.family(up).add(&[], true);
        out.family(info).add(&[("device", "soft:\"a\\b\"\n"), ("pkey", "0x1")], true);
        out.finish()
    }

    #[test]
    fn the_formats_differ_where_they_have_to() {
        assert_eq!(
            written(MetricsFormat::OpenMetrics),
            "# HELP pollux_x_seconds Time\n# TYPE pollux_x_seconds counter\n\
             # UNIT pollux_x_seconds seconds\n\
             pollux_x_seconds_total{worker=\"0\"} 0.25\n\
             pollux_x_seconds_total{worker=\"1\"} 1e-7\n\
             # HELP pollux_up State\n# TYPE pollux_up gauge\npollux_up 1\n\
             # HELP pollux_y Constant\n# TYPE pollux_y info\n\
             pollux_y_info{device=\"soft:\\\"a\\\\b\\\"\\n\",pkey=\"0x1\"} 1\n# EOF\n"
        );
        assert_eq!(
            written(MetricsFormat::Text),
            "# HELP pollux_x_seconds_total Time\n# TYPE pollux_x_seconds_total counter\n\
             pollux_x_seconds_total{worker=\"0\"} 0.25\n\
             pollux_x_seconds_total{worker=\"1\"} 1e-7\n\
             # HELP pollux_up State\n# TYPE pollux_up gauge\npollux_up 1\n\
             # HELP pollux_y_info Constant\n# TYPE pollux_y_info gauge\n\
             pollux_y_info{device=\"soft:\\\"a\\\\b\\\"\\n\",pkey=\"0x1\"} 1\n"
        );
    }
}
