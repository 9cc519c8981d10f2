//! Every trap, as sent to the subnet manager and as reported by subnet administration.

use crate::{ROUNDS, by_lid, bytes, plain, sa};
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::address::Gid;
use pollux_wire::mad::notice::*;
use pollux_wire::mad::{Attribute, Method};

fn expect_notice(frame: DissectedFrame, notice: &Notice) -> DissectedFrame {
    fields!(frame, "notice",
        isgeneric: 2 = notice.is_generic,
        type: 2 = notice.notice_type.0,
        producertypevendorid: 6 = notice.producer.0,
        trapnumberdeviceid: 4 = notice.trap_number.0,
        issuerlid: 4 = notice.issuer_lid.0,
        noticetoggle: 2 = notice.toggle,
        noticecount: 4 = notice.count,
    )
}

fn expect_details(frame: DissectedFrame, details: TrapDetails) -> DissectedFrame {
    match details {
        TrapDetails::Gid(trap) => frame.expect("infiniband.trap.gidaddr", trap.gid),
        TrapDetails::LinkState(trap) => fields!(frame, "trap", lidaddr: 4 = trap.lid.0),
        TrapDetails::Capability(trap) => {
            let changed = |change| u8::from(trap.changes.contains(change));
            fields!(frame, "trap",
                lidaddr: 4 = trap.lid.0,
                otherlocalchanges: 2 = trap.other_local_changes,
                capabilitymask: 8 = trap.capability_mask.0,
                nodedescriptionchange: 2 = changed(LocalChanges::NODE_DESCRIPTION),
                linkwidthenabledchange: 2 = changed(LocalChanges::LINK_WIDTH_ENABLED),
                linkspeecenabledchange: 2 = changed(LocalChanges::LINK_SPEED_ENABLED),
            )
        }
        TrapDetails::BadMKey(trap) => fields!(
            frame.expect("infiniband.trap.drnoticereturnpath", plain(&trap.return_path)), "trap",
            lidaddr: 4 = trap.lid.0,
            drslid: 4 = trap.dr_slid.0,
            method: 2 = trap.method.0,
            attributeid: 4 = trap.attribute_id.0,
            attributemodifier: 8 = trap.attribute_modifier,
            mkey: 16 = trap.m_key.0,
            drnotice: 2 = trap.is_directed,
            drpathtruncated: 2 = trap.path_truncated,
            drhopcount: 2 = trap.hop_count,
        ),
        TrapDetails::BadKey(trap) => fields!(
            frame.expect("infiniband.trap.gidaddr1", trap.gid1)
                .expect("infiniband.trap.gidaddr2", trap.gid2), "trap",
            lidaddr1: 4 = trap.lid1.0,
            lidaddr2: 4 = trap.lid2.0,
            key: 8 = trap.key,
            sl: 2 = trap.service_level,
            qp1: 6 = trap.qp1.0,
            qp2: 6 = trap.qp2.0,
        ),
        TrapDetails::BadPKeyAtSwitch(_) => frame.misread(
            "tshark 4.0 takes the 16 bits of DataValid in trap 259 for an IPv6 address, and stops",
        ),
        TrapDetails::Raw(_) => frame,
    }
}

#[test]
fn traps_and_reports() {
    let mut frames = Vec::new();
    for &trap_number in TrapNumber::ALL {
        for round in 0..ROUNDS {
            let random = Notice::from_data(&bytes::<64>(round));
            let details = TrapDetails::parse(trap_number, &random.data_details);
            let data_details = details.emit();
            let notice = Notice { is_generic: true, trap_number, data_details, ..random };
            let name = trap_number.to_string();
            let trap = expect_notice(by_lid(&name, Method::TRAP, notice), &notice);
            frames.push(expect_details(trap, details));

            let issuer_gid = Gid(bytes(round));
            let report = NoticeReport { notice, issuer_gid };
            let report = expect_notice(sa(&name, Method::REPORT, report), &notice);
            frames.push(expect_details(report, details));
        }
    }
    let vendors = Notice { is_generic: false, ..Notice::from_data(&bytes::<64>(0)) };
    frames.push(expect_notice(by_lid("vendor's", Method::TRAP, vendors), &vendors));
    judge("traps_and_reports", &frames);
}
