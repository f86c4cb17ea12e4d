//! What a grammar from a stranger may cost.

use llguidance::api::ParserLimits;

/// Bytes of a grammar's text.
pub const MOST_BYTES: usize = 256 << 10;

pub const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000, // about 20 ms
    step_lexer_fuel: 200_000,      // about 15 ms
    step_max_items: 50_000,        // about 3 ms
    max_lexer_states: 50_000,      // 1 to 2 KB each
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};
