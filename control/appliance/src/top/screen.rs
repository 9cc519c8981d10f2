//! The screen: tabs, warnings, the tables of the view, and the keys. It draws into the given frame,
//! so tests can draw into memory.

use super::sample::SampleChange;
use super::sheet::{Sheet, SheetCell};
use super::warnings::warnings;
use super::{View, sheets};
use clap::ValueEnum;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

const WARNINGS_MAX: usize = 4;
/// Maximum width of a column in characters; a text column at the end takes the remaining width.
const COLUMN_WIDTH_MAX: usize = 40;

pub struct Screen {
    pub view: View,
    pub change: Option<SampleChange>,
    /// Why there is no newer sample.
    pub failure: Option<String>,
    pub is_paused: bool,
    pub shows_help: bool,
    /// The column by which rows are sorted; `None` for the order of the view.
    pub sort: Option<usize>,
    pub is_reversed: bool,
    pub filter: String,
    /// Whether keys go to the filter.
    pub edits_filter: bool,
    /// The number of rows that are scrolled off the top.
    pub scrolled: usize,
    pub interval_ms: u64,
    pub has_colors: bool,
}

const HELP: [&str; 10] = [
    "1-7, Tab    views",
    "s           sort by the next column",
    "r           reverse the order",
    "/           filter rows by a text; Esc clears it",
    "p           pause",
    "+ -         longer and shorter interval",
    "j k, arrows scroll",
    "?           this help",
    "q, Ctrl-C   quit",
    "Rates are between the last two samples.",
];

impl Screen {
    pub const fn new(view: View, interval_ms: u64, has_colors: bool) -> Self {
        Self {
            view,
            change: None,
            failure: None,
            is_paused: false,
            shows_help: false,
            sort: None,
            is_reversed: false,
            filter: String::new(),
            edits_filter: false,
            scrolled: 0,
            interval_ms,
            has_colors,
        }
    }

    fn color(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    fn alarm(&self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        let mut lines: Vec<_> = self.change.as_ref().map(warnings).unwrap_or_default();
        if let Some(failure) = &self.failure {
            lines.insert(0, failure.clone());
        }
        let hidden = lines.len().saturating_sub(WARNINGS_MAX);
        if hidden > 0 {
            lines.truncate(WARNINGS_MAX - 1);
            lines.push(format!("and {} more", hidden + 1));
        }
        let height = lines.len() as u16;
        let parts = [
            Constraint::Length(1),
            Constraint::Length(height),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [tabs, warned, body, keys] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(self.tabs(), tabs);
        let style = self.alarm();
        let lines: Vec<_> = lines.into_iter().map(|line| Line::styled(line, style)).collect();
        frame.render_widget(Paragraph::new(lines), warned);
        self.draw_body(frame, body);
        frame.render_widget(self.keys(), keys);
        if self.shows_help {
            draw_help(frame);
        }
    }

    fn tabs(&self) -> Line<'_> {
        let mut spans = Vec::new();
        for (nth, view) in View::value_variants().iter().enumerate() {
            let style = match *view == self.view {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            spans.push(Span::styled(format!("{} {}", nth + 1, view.name()), style));
            spans.push(Span::raw(" "));
        }
        Line::from(spans)
    }

    fn keys(&self) -> Line<'_> {
        if self.edits_filter || !self.filter.is_empty() {
            let cursor = if self.edits_filter { "_" } else { "" };
            return Line::raw(format!("/{}{cursor}  (Esc clears the filter)", self.filter));
        }
        let seconds = self.interval_ms as f64 / 1e3;
        let keys = format!(
            "q quit  ? help  s sort  r reverse  / filter  p pause  +- interval {seconds} s"
        );
        let paused = if self.is_paused { "paused  " } else { "" };
        Line::from(vec![Span::styled(paused, self.color(Color::Yellow)), Span::raw(keys)])
    }

    fn draw_body(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(change) = &self.change else {
            return frame.render_widget(Paragraph::new("waiting for the node"), area);
        };
        let mut all = sheets(self.view, change);
        all.iter_mut().for_each(|sheet| self.arrange(sheet));
        let is_only = all.len() == 1;
        let height = |sheet: &Sheet| match is_only {
            true => Constraint::Min(2),
            false => Constraint::Length(2 + sheet.rows.len() as u16),
        };
        let heights: Vec<_> = all.iter().map(height).collect();
        let areas = Layout::vertical(heights).split(area);
        for (sheet, area) in all.iter().zip(areas.iter()) {
            frame.render_widget(self.table(sheet), *area);
        }
    }

    fn arrange(&self, sheet: &mut Sheet) {
        if !self.filter.is_empty() {
            sheet.filter(&self.filter);
        }
        if let Some(column) = self.sort {
            sheet.sort(column % sheet.headings.len(), self.is_reversed);
        } else if self.is_reversed {
            sheet.rows.reverse();
        }
        let last = sheet.rows.len().saturating_sub(1);
        sheet.rows.drain(..self.scrolled.min(last));
    }

    fn table(&self, sheet: &Sheet) -> Table<'_> {
        let sorted = self.sort.map(|column| column % sheet.headings.len());
        let heading = |(nth, text): (usize, &&'static str)| {
            let style = Style::new().add_modifier(Modifier::BOLD);
            let mark = if sorted == Some(nth) { "*" } else { "" };
            let is_number = sheet.rows.first().is_some_and(|row| row[nth].is_number());
            let alignment = if is_number { Alignment::Right } else { Alignment::Left };
            Cell::from(Line::from(format!("{text}{mark}")).alignment(alignment)).style(style)
        };
        let headings = Row::new(sheet.headings.iter().enumerate().map(heading));
        let rows = sheet.rows.iter().map(|row| Row::new(row.iter().map(|cell| self.cell(cell))));
        let last = sheet.headings.len() - 1;
        let width = |(nth, heading): (usize, &&str)| {
            let cells = sheet.rows.iter().map(|row| row[nth].text().chars().count());
            let mark = usize::from(sorted == Some(nth));
            let widest = cells.chain([heading.len() + mark]).max().unwrap_or(0);
            let is_text = sheet.rows.first().is_some_and(|row| !row[nth].is_number());
            match nth == last && is_text {
                true => Constraint::Fill(1),
                false => Constraint::Length(widest.min(COLUMN_WIDTH_MAX) as u16),
            }
        };
        let widths: Vec<_> = sheet.headings.iter().enumerate().map(width).collect();
        Table::new(rows, widths).header(headings)
    }

    fn cell(&self, cell: &SheetCell) -> Cell<'static> {
        let style = match cell {
            SheetCell::Alarm(rate) if *rate > 0.0 => self.alarm(),
            SheetCell::Text(text) if text == "up" || text == "open" => self.color(Color::Green),
            _ => Style::new(),
        };
        let alignment = if cell.is_number() { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(cell.text()).alignment(alignment)).style(style)
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let screen = frame.area();
    let (width, height) = (52.min(screen.width), (HELP.len() as u16 + 2).min(screen.height));
    let (x, y) = ((screen.width - width) / 2, (screen.height - height) / 2);
    let area = Rect { x, y, width, height };
    frame.render_widget(Clear, area);
    let lines: Vec<_> = HELP.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("keys")), area);
}

#[cfg(test)]
mod tests;
