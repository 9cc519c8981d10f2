//! Rectangles of a picture.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Area {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NodeBox {
    pub(crate) area: Area,
    /// Whether its name is written from bottom to top.
    pub(crate) is_vertical: bool,
    pub(crate) is_hosted: bool,
}

impl Area {
    pub(crate) fn middle(&self) -> f64 {
        self.x + self.width / 2.0
    }

    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}
