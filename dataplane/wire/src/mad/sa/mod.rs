//! Subnet administration: records and their component masks (IBA 15.2).
