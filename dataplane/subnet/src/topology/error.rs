//! Errors of a topology specification or file, each with its remedy.

use super::{NODES_MAX, PORTS_MAX};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: `{word}`: {problem}")]
pub struct TopologyError {
    /// The file and line, or the specification.
    pub location: String,
    pub word: String,
    pub problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error(
        "no such topology; take single:N, ring:N, torus:XxY, fat-tree:K, \
         leaf-spine:LEAVESxSPINESxHOSTS or routed:NxM, or name a file by a path with a /"
    )]
    UnknownKind,
    #[error("write it as {0}")]
    Parameters(&'static str),
    #[error("give a number from {min} to {max}")]
    Number { min: u32, max: u32 },
    #[error("half of a switch's ports go up and half down; give an even number")]
    Odd,
    #[error("a subnet has LIDs for {} nodes; make it smaller", NODES_MAX)]
    TooManyNodes,
    #[error("a node has at most {} ports; use more, smaller switches", PORTS_MAX)]
    TooManyPorts,
    #[error(
        "begin the line with Switch, Ca, Hca, Rt, [PORT], KEY=VALUE or #, as ibnetdiscover does"
    )]
    UnknownLine,
    #[error("put the line of its node before it")]
    PortWithoutNode,
    #[error("put {0} here")]
    Expected(&'static str),
    #[error("end the line here, or begin a comment with #")]
    TrailingText,
    #[error("give a width of 1, 2, 4, 8 or 12 and a speed from SDR to NDR, as in 4xEDR")]
    Rate,
    #[error("another node has this name; rename one of them")]
    SameName,
    #[error("another node has this GUID; change one, or leave both to the seed")]
    SameGuid,
    #[error("no node has this name; give it a record, or remove the link")]
    UnknownNode,
    #[error("its node has no such port; count its ports again")]
    UnknownPort,
    #[error("one of the two ports has another link already; remove one of them")]
    LinkedTwice,
    #[error("there is no node in it; begin with a line such as Switch 8 \"S1\"")]
    Empty,
}

impl TopologyError {
    pub(super) fn new(location: &str, word: &str, problem: Problem) -> Self {
        Self { location: location.into(), word: word.into(), problem }
    }
}
