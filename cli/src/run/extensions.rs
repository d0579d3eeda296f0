//! The extensions of RON that run files have.

use ron::extensions::Extensions;

/// `Some(..)` may be left out, and the settings of a strategy stand directly in its parentheses.
pub(super) fn extensions() -> Extensions {
    Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES
}
