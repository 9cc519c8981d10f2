//! Plots as SVG: axes, lines, dots and bands. The style sheet of the page defines the colors of the
//! classes. A caption is HTML, outside of the SVG, so that it can break into lines.

use crate::judgement::three_digits;
use std::fmt::{self, Write};

/// The width in SVG units. It is small, because a narrow screen scales the plot to the page width,
/// and its text has to stay readable.
pub const WIDTH: f64 = 420.0;
pub const HEIGHT: f64 = 252.0;
/// Left, top, right and bottom edge of the data area.
const AREA: [f64; 4] = [62.0, 20.0, 408.0, 208.0];
/// Free space at each end of an axis, as a fraction of the data range.
const MARGIN: f64 = 0.06;

pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub marks: Vec<Mark>,
}

pub struct Axis {
    pub label: String,
    pub is_log: bool,
    /// Values and their labels; if empty, the plot chooses its own.
    pub ticks: Vec<(f64, String)>,
}

pub enum Mark {
    /// A line through points, thick or thin.
    Line { points: Vec<(f64, f64)>, is_strong: bool },
    /// A dot with a tooltip and an error bar along y.
    Dot { at: (f64, f64), interval: Option<[f64; 2]>, text: String },
    /// A horizontal band between two values of y.
    Band { between: [f64; 2] },
}

impl Mark {
    fn xs(&self) -> Vec<f64> {
        match self {
            Self::Line { points, .. } => points.iter().map(|point| point.0).collect(),
            Self::Dot { at, .. } => vec![at.0],
            Self::Band { .. } => Vec::new(),
        }
    }

    fn ys(&self) -> Vec<f64> {
        match self {
            Self::Line { points, .. } => points.iter().map(|point| point.1).collect(),
            Self::Dot { at, interval, .. } => {
                interval.iter().flatten().copied().chain([at.1]).collect()
            }
            Self::Band { between } => between.to_vec(),
        }
    }

    fn draw(&self, f: &mut impl Write, x: &Scale, y: &Scale) -> fmt::Result {
        let [left, _, right, _] = AREA;
        match self {
            Self::Band { between: [least, most] } => {
                let (high, low) = (y.at(*most), y.at(*least));
                writeln!(
                    f,
                    "<rect class=\"band\" x=\"{left}\" y=\"{high:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"/>",
                    right - left,
                    (low - high).max(1.0)
                )
            }
            Self::Line { points, is_strong } => {
                let class = if *is_strong { "strong" } else { "thin" };
                let points = points.iter().fold(String::new(), |mut all, point| {
                    let _ = write!(all, "{:.1},{:.1} ", x.at(point.0), y.at(point.1));
                    all
                });
                writeln!(f, "<polyline class=\"{class}\" points=\"{}\"/>", points.trim_end())
            }
            Self::Dot { at, interval, text } => {
                let (across, down) = (x.at(at.0), y.at(at.1));
                if let Some([least, most]) = interval {
                    writeln!(
                        f,
                        "<line class=\"interval\" x1=\"{across:.1}\" x2=\"{across:.1}\" \
                         y1=\"{:.1}\" y2=\"{:.1}\"/>",
                        y.at(*least),
                        y.at(*most)
                    )?;
                }
                writeln!(
                    f,
                    "<circle cx=\"{across:.1}\" cy=\"{down:.1}\" r=\"3.5\"><title>{}</title>\
                     </circle>",
                    escape(text)
                )
            }
        }
    }
}

/// Maps the values of an axis to positions from `from` to `to`.
struct Scale {
    is_log: bool,
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(axis: &Axis, values: &[f64], [from, to]: [f64; 2]) -> Self {
        let position = |value: &f64| if axis.is_log { value.max(1e-12).log10() } else { *value };
        let ends = values.iter().chain(axis.ticks.iter().map(|(at, _)| at)).map(position);
        let (least, most) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), one| {
            (least.min(one), most.max(one))
        });
        let free = if most > least { (most - least) * MARGIN } else { most.abs().max(1.0) * 0.5 };
        Self { is_log: axis.is_log, least: least - free, most: most + free, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(1e-12).log10() } else { value };
        let part = (value - self.least) / (self.most - self.least);
        self.from + part * (self.to - self.from)
    }

    /// A few round values within the range, with labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        // A range below one decade contains at most one power of ten, so it gets even steps.
        let values: Vec<f64> = if self.is_log && self.most - self.least >= 1.0 {
            let decades = self.most - self.least;
            let within = if decades > 2.5 { &[1.0][..] } else { &[1.0, 2.0, 5.0] };
            let exponents = self.least.floor() as i32..=self.most.ceil() as i32;
            exponents
                .flat_map(|exponent| within.iter().map(move |one| one * 10f64.powi(exponent)))
                .collect()
        } else {
            let value = |position: f64| if self.is_log { 10f64.powf(position) } else { position };
            let (least, most) = (value(self.least), value(self.most));
            let step = round_step((most - least) / 4.0);
            let (first, last) = ((least / step).ceil() as i64, (most / step).floor() as i64);
            (first..=last).map(|nth| nth as f64 * step).collect()
        };
        let is_within = |value: &f64| {
            let position = if self.is_log { value.log10() } else { *value };
            self.least <= position && position <= self.most
        };
        values.into_iter().filter(is_within).map(|value| (value, short(value))).collect()
    }
}

/// The smallest of 1, 2, 5 and 10 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.map(|factor| factor * power).into_iter().find(|one| *one >= step).unwrap_or(power)
}

/// Formats a number for an axis: 1500000 as 1.5 M.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        large if large >= 1e9 => (value * 1e-9, " G"),
        large if large >= 1e6 => (value * 1e-6, " M"),
        large if large >= 1e4 => (value * 1e-3, " k"),
        _ => (value, ""),
    };
    let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { three_digits(value) };
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    };
    text + unit
}

/// Escapes text for HTML and SVG elements and attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Plot {
    /// Writes the plot as an SVG element with additional attributes.
    pub fn draw(&self, f: &mut impl Write, attributes: &str) -> fmt::Result {
        let [left, top, right, bottom] = AREA;
        let xs: Vec<_> = self.marks.iter().flat_map(Mark::xs).collect();
        let ys: Vec<_> = self.marks.iter().flat_map(Mark::ys).collect();
        let x = Scale::of(&self.x, &xs, [left, right]);
        let y = Scale::of(&self.y, &ys, [bottom, top]);
        let title = escape(&self.title);
        writeln!(
            f,
            "<svg {attributes}viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{title}\">"
        )?;
        self.axes(f, &x, &y)?;
        self.marks.iter().try_for_each(|mark| mark.draw(f, &x, &y))?;
        writeln!(f, "</svg>")
    }
}

impl Plot {
    fn axes(&self, f: &mut impl Write, x: &Scale, y: &Scale) -> fmt::Result {
        let [left, top, right, bottom] = AREA;
        let chosen = |axis: &Axis, scale: &Scale| match axis.ticks.is_empty() {
            true => scale.ticks(),
            false => axis.ticks.clone(),
        };
        for (value, text) in chosen(&self.y, y) {
            let down = y.at(value);
            writeln!(
                f,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{down:.1}\" \
                 y2=\"{down:.1}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                left - 6.0,
                down + 4.0,
                escape(&text)
            )?;
        }
        for (value, text) in chosen(&self.x, x) {
            let across = x.at(value);
            writeln!(
                f,
                "<line class=\"grid\" x1=\"{across:.1}\" x2=\"{across:.1}\" y1=\"{top}\" \
                 y2=\"{bottom}\"/><text class=\"x\" x=\"{across:.1}\" y=\"{}\">{}</text>",
                bottom + 16.0,
                escape(&text)
            )?;
        }
        writeln!(
            f,
            "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>\
             <text x=\"4\" y=\"{}\">{}</text>",
            f64::midpoint(left, right),
            bottom + 36.0,
            escape(&self.x.label),
            top - 8.0,
            escape(&self.y.label)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(is_log: bool) -> Axis {
        Axis { label: "ns".into(), is_log, ticks: Vec::new() }
    }

    #[test]
    fn ticks_are_round_and_within_the_range() {
        let texts = |is_log, values: &[f64]| {
            let scale = Scale::of(&axis(is_log), values, [0.0, 100.0]);
            let ticks = scale.ticks();
            assert!(ticks.iter().all(|(value, _)| (0.0..=100.0).contains(&scale.at(*value))));
            ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(texts(false, &[1.0, 7.0]), ["2", "4", "6"]);
        let decades = ["1", "10", "100", "1000", "10 k", "100 k", "1 M"];
        assert_eq!(texts(true, &[1.0, 1e6]), decades);
        assert_eq!(texts(true, &[10.0, 100.0]), ["10", "20", "50", "100"]);
    }

    #[test]
    fn values_are_placed_in_proportion() {
        let scale = Scale::of(&axis(true), &[1.0, 100.0], [0.0, 100.0]);
        assert!((scale.at(10.0) - 50.0).abs() < 1e-9);
        let same = Scale::of(&axis(false), &[5.0, 5.0], [0.0, 100.0]);
        assert!((same.at(5.0) - 50.0).abs() < 1e-9, "a range of one value");
    }

    #[test]
    fn marks_are_elements_and_texts_are_escaped() {
        let marks = vec![
            Mark::Band { between: [1.0, 2.0] },
            Mark::Line { points: vec![(1.0, 1.0), (2.0, 2.0)], is_strong: true },
            Mark::Dot { at: (1.0, 1.5), interval: Some([1.0, 2.0]), text: "<a>".into() },
        ];
        let plot = Plot { title: "a < b".into(), x: axis(false), y: axis(false), marks };
        let mut svg = String::new();
        plot.draw(&mut svg, "").expect("a string takes all");
        for element in
            ["<rect", "<polyline", "<circle", "class=\"interval\"", "a &lt; b", "&lt;a&gt;"]
        {
            assert!(svg.contains(element), "{element}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let texts = [0.0, 0.5, 20.0, 1500.0, 20_000.0, 1.5e6, 2e9].map(short);
        assert_eq!(texts, ["0", "0.5", "20", "1500", "20 k", "1.5 M", "2 G"]);
    }
}
