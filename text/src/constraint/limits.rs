//! What a grammar from a stranger may cost.

use llguidance::api::ParserLimits;

/// Bytes of a grammar's text.
pub const MOST_BYTES: usize = 256 << 10;

/// Patterns in one `patternProperties`: each pair is checked for overlap.
pub const MOST_PATTERNS: usize = 32;

/// Patterns that one string must match: the compiler's time is exponential in their number.
pub const MOST_JOINED: usize = 12;

/// Properties of one object. The compiler's time grows with their square, whose sum over all objects is limited too.
pub const MOST_PROPERTIES: usize = 512;
pub const MOST_SQUARES: usize = 1 << 20;

/// Different references in a schema.
pub const MOST_REFERENCES: usize = 1000;

/// Steps to show, in all of a schema, which options exclude each other: about eight for two with a discriminator.
pub const MOST_COMPARED: usize = 1 << 18;

/// Values written for keywords that the compiler lacks; 16 bytes of a text count as one.
pub const MOST_WRITTEN: usize = 1 << 16;

/// Pairs of options of a `oneOf` that overlap.
pub const MOST_OVERLAPS: usize = 1000;

/// Alternatives of one negated schema.
pub const MOST_CHOICES: usize = 8;

/// Combinations of such alternatives that one value must fit.
pub const MOST_COMBINED: usize = 64;

/// Numbers in an `enum` that is negated, and bytes of the pattern that negates one of texts.
pub const MOST_EXCEPTIONS: usize = 16;
pub const MOST_PATTERN_BYTES: usize = 4096;

/// Items of `contains`, and lists of different items of `uniqueItems`.
pub const MOST_CONTAINED: usize = 16;
pub const MOST_ARRANGED: usize = 400;

/// Bits of a number of `multipleOf`, without its decimal point, and of the product of those that one number must be a
/// multiple of; and decimals. The compiler adds ten times such a number and nine times the power of ten of its decimals,
/// in 32 bits.
pub const MOST_BITS: usize = 28;
pub const MOST_DECIMALS: u32 = 8;

/// Bits of the remainders of such a product, without its factors 2 and 5: each remainder is a state, about 6 us and 0.3 KB.
pub const MOST_REMAINDER_BITS: usize = 16;

/// Bits of the number of combinations of options that one value must fit.
pub const MOST_OPTION_BITS: usize = 10;

/// Branches of the derivatives of all expressions, each about 100 ns.
pub const MOST_BRANCHES: usize = 1 << 20;

/// Of the thread that compiles a grammar: nesting, references to references, and long lists of properties are calls
/// inside calls.
pub const STACK_BYTES: usize = 32 << 20;

/// Smaller schemas that are compiled to find the keyword that an error is about.
pub const MOST_TRIES: usize = 64;

pub const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 4000,
    initial_lexer_fuel: 1_000_000, // about 20 ms
    step_lexer_fuel: 200_000,      // about 15 ms
    step_max_items: 50_000,        // about 3 ms
    max_lexer_states: 50_000,      // 1 to 2 KB each
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// For a caller's Lark grammar: each item of an ambiguous grammar takes up to 100 times as long.
pub const LARK_LIMITS: ParserLimits = ParserLimits { max_items_in_row: 1000, step_max_items: 4000, ..LIMITS };
