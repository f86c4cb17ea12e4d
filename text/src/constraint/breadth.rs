//! Limits the time of a grammar's first derivatives, which the compiler does not.

use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::ExprRef;

use super::limits::MOST_BRANCHES;

/// Refuses lexemes whose derivatives have too many branches. The derivative of `a?b?c?`, `b?c?|c?|`, has one for each
/// optional part in a row, so the time grows with the square of their number.
pub fn check(lexemes: &ExprSet) -> Result<(), String> {
    let mut sample = ExprSet::new(256);
    let byte = sample.mk_byte(b'a');
    let sequence = sample.mk_concat(byte, byte);
    let sequence = sample.get_tag(sequence);
    let mut branches = vec![1; lexemes.len().max(1)]; // of the derivative of each expression; parts come before the whole
    let mut total = 0_usize;
    for place in 1..lexemes.len() {
        let expression = ExprRef::new(place as u32);
        let of = |part: &ExprRef| branches[part.as_usize()];
        let found = match lexemes.get_args(expression) {
            [first, rest] if lexemes.get_tag(expression) == sequence => {
                1 + if lexemes.is_nullable(*first) { of(rest) } else { 0 }
            }
            [_] => 1,
            parts => parts.iter().map(of).fold(1, usize::saturating_add),
        };
        branches[place] = found;
        total = total.saturating_add(found);
    }
    if total > MOST_BRANCHES {
        return Err(format!("too many optional parts in a row ({total} branches; at most {MOST_BRANCHES})"));
    }
    Ok(())
}
