//! The state transitions of queue pairs, as a table (IBA 10.3.1, tables of 11.2.5.2).
//!
//! ```text
//!             +-------+      +------+      +-----+      +-----+ <--- +-----+
//!   create -> | RESET | ---> | INIT | ---> | RTR | ---> | RTS | ---> | SQD |
//!             +-------+      +------+      +-----+      +-----+      +-----+
//!                 ^                                     ^   | a send failed (UC, UD)
//!                 | from anywhere                       |   v
//!                 |                                     +-----+
//!              to ERR: from anywhere                    | SQE |
//!                                                       +-----+
//! ```
//!
//! A row has the required and the optional attributes of a transition. Every adapter checks a
//! change against the table first, so all adapters report the same error for an invalid change.

use crate::error::VerbsError;
use crate::qp::{QpAttribute, QpAttributes, QpState, QpType};
use QpAttribute::*;

/// An allowed transition.
struct Row {
    from: QpState,
    to: QpState,
    required: &'static [QpAttribute],
    optional: &'static [QpAttribute],
}

const fn row(
    from: QpState,
    to: QpState,
    required: &'static [QpAttribute],
    optional: &'static [QpAttribute],
) -> Row {
    Row { from, to, required, optional }
}

use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};

const RC: &[Row] = &[
    row(Reset, Init, &[PkeyIndex, Port, Access], &[]),
    row(Init, Init, &[], &[PkeyIndex, Port, Access]),
    row(
        Init,
        Rtr,
        &[Path, PathMtu, DestQp, RqPsn, ResponderResources, MinRnrTimer],
        &[AlternatePath, Access, PkeyIndex],
    ),
    row(
        Rtr,
        Rts,
        &[Timeout, RetryCount, RnrRetry, SqPsn, InitiatorDepth],
        &[AlternatePath, Access, MinRnrTimer, Migration],
    ),
    row(Rts, Rts, &[], &[AlternatePath, Access, MinRnrTimer, Migration]),
    row(Rts, Sqd, &[], &[DrainEvent]),
    row(Sqd, Rts, &[], &[AlternatePath, Access, MinRnrTimer, Migration]),
    row(
        Sqd,
        Sqd,
        &[],
        &[
            PkeyIndex,
            Port,
            Access,
            Path,
            AlternatePath,
            ResponderResources,
            InitiatorDepth,
            MinRnrTimer,
            Timeout,
            RetryCount,
            RnrRetry,
            Migration,
        ],
    ),
];

const UC: &[Row] = &[
    row(Reset, Init, &[PkeyIndex, Port, Access], &[]),
    row(Init, Init, &[], &[PkeyIndex, Port, Access]),
    row(Init, Rtr, &[Path, PathMtu, DestQp, RqPsn], &[AlternatePath, Access, PkeyIndex]),
    row(Rtr, Rts, &[SqPsn], &[AlternatePath, Access, Migration]),
    row(Rts, Rts, &[], &[AlternatePath, Access, Migration]),
    row(Rts, Sqd, &[], &[DrainEvent]),
    row(Sqd, Rts, &[], &[AlternatePath, Access, Migration]),
    row(Sqd, Sqd, &[], &[PkeyIndex, Access, Path, AlternatePath, Migration]),
    row(Sqe, Rts, &[], &[Access]),
];

const UD: &[Row] = &[
    row(Reset, Init, &[PkeyIndex, Port, Qkey], &[]),
    row(Init, Init, &[], &[PkeyIndex, Port, Qkey]),
    row(Init, Rtr, &[], &[PkeyIndex, Qkey]),
    row(Rtr, Rts, &[SqPsn], &[Qkey]),
    row(Rts, Rts, &[], &[Qkey]),
    row(Rts, Sqd, &[], &[DrainEvent]),
    row(Sqd, Rts, &[], &[Qkey]),
    row(Sqd, Sqd, &[], &[PkeyIndex, Qkey]),
    row(Sqe, Rts, &[], &[Qkey]),
];

/// Checks a change of a queue pair in state `from`; returns the new state.
pub fn check(qp_type: QpType, from: QpState, change: &QpAttributes) -> Result<QpState, VerbsError> {
    if let Some(expected) = change.current_state
        && expected != from
    {
        return Err(invalid("current_state", format!("it is {from}, not {expected}")));
    }
    let to = change.state.unwrap_or(from);
    // Transitions to RESET and ERR are always allowed, without attributes.
    let (required, optional): (&[QpAttribute], &[QpAttribute]) =
        if matches!(to, Reset | QpState::Err) {
            (&[], &[])
        } else {
            let row = rows(qp_type).iter().find(|row| row.from == from && row.to == to);
            let row = row.ok_or_else(|| {
                invalid(
                    "state",
                    format!(
                        "{qp_type} cannot go from {from} to {to}{}",
                        alternatives(qp_type, from)
                    ),
                )
            })?;
            (row.required, row.optional)
        };
    let given = change.mask() & !bits(&[State, CurrentState]);
    let missing = bits(required) & !given;
    if missing != 0 {
        return Err(invalid(
            first(missing),
            format!("{qp_type} needs {} to go from {from} to {to}", names(missing)),
        ));
    }
    let extra = given & !bits(required) & !bits(optional);
    if extra != 0 {
        return Err(invalid(
            first(extra),
            format!("{qp_type} cannot take {} when it goes from {from} to {to}", names(extra)),
        ));
    }
    Ok(to)
}

fn rows(qp_type: QpType) -> &'static [Row] {
    match qp_type {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud | QpType::Gsi => UD,
    }
}

/// The allowed next states, for the error message.
fn alternatives(qp_type: QpType, from: QpState) -> String {
    let states = rows(qp_type).iter().filter(|row| row.from == from && row.to != from);
    let states: Vec<String> = states.map(|row| row.to.to_string()).collect();
    if states.is_empty() {
        return "; only to RESET or ERR".into();
    }
    format!("; only to {}, RESET or ERR", states.join(", "))
}

fn invalid(argument: &'static str, reason: String) -> VerbsError {
    VerbsError::Invalid { verb: "modify_qp", argument, reason }
}

fn bits(attributes: &[QpAttribute]) -> u32 {
    attributes.iter().fold(0, |bits, &attribute| bits | 1 << attribute as u32)
}

fn of(bits: u32) -> impl Iterator<Item = &'static str> {
    let held = QpAttribute::ALL.iter().filter(move |&&one| bits >> one as u32 & 1 == 1);
    held.map(|one| one.name())
}

fn first(bits: u32) -> &'static str {
    of(bits).next().unwrap_or("state")
}

fn names(bits: u32) -> String {
    of(bits).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::psn::Psn;

    fn table(qp_type: QpType) -> String {
        let cell = |from, to| {
            let allowed = matches!(to, Reset | QpState::Err)
                || rows(qp_type).iter().any(|row| row.from == from && row.to == to);
            if allowed { "x" } else { "." }
        };
        let line = |from: QpState| {
            let cells = QpState::ALL.map(|to| cell(from, to));
            format!("{:>5} {}\n", from.to_string(), cells.join(" "))
        };
        QpState::ALL.map(line).concat()
    }

    #[test]
    fn every_state_against_every_state() {
        // Columns in the order of rows: RESET INIT RTR RTS SQD SQE ERR.
        let connected = "\
RESET x x . . . . x
 INIT x x x . . . x
  RTR x . . x . . x
  RTS x . . x x . x
  SQD x . . x x . x
  SQE x . . . . . x
  ERR x . . . . . x
";
        assert_eq!(table(QpType::Rc), connected);
        let unreliable = connected.replace("SQE x . . . .", "SQE x . . x .");
        assert_eq!(table(QpType::Uc), unreliable);
        assert_eq!(table(QpType::Ud), unreliable);
    }

    #[test]
    fn an_error_names_the_attribute_and_the_states() {
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let refusal =
            |qp_type, from, change| check(qp_type, from, &change).unwrap_err().to_string();
        assert_eq!(
            refusal(QpType::Rc, Reset, to(Rts)),
            "modify_qp: state: RC cannot go from RESET to RTS; only to INIT, RESET or ERR"
        );
        assert_eq!(
            refusal(QpType::Ud, Rtr, to(Rts)),
            "modify_qp: sq_psn: UD needs sq_psn to go from RTR to RTS"
        );
        let psn = QpAttributes { sq_psn: Some(Psn::new(1)), ..to(QpState::Err) };
        assert_eq!(
            refusal(QpType::Rc, Rts, psn),
            "modify_qp: sq_psn: RC cannot take sq_psn when it goes from RTS to ERR"
        );
        let expected = QpAttributes { current_state: Some(Rts), ..to(QpState::Err) };
        assert_eq!(
            refusal(QpType::Rc, Sqd, expected),
            "modify_qp: current_state: it is SQD, not RTS"
        );
    }
}
