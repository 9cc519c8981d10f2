//! Every state with every input, the limits of the table, and an oracle for it.
