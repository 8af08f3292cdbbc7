#!/bin/sh
# Prints how the signatures of a release are checked, with the names of its repository, for the notes of the release.
#
# Usage: verify.sh OWNER/REPOSITORY refs/tags/vX.Y.Z IMAGE@DIGEST
set -eu

identity="https://github.com/$1/.github/workflows/release.yml@$2"
issuer=https://token.actions.githubusercontent.com
cat <<EOF
## Checking this release

The workflow \`release.yml\` of \`$1\` signed it, for \`$2\` and for nothing else:

    cosign verify-blob --bundle SHA256SUMS.sigstore.json \\
        --certificate-oidc-issuer $issuer \\
        --certificate-identity $identity SHA256SUMS
    sha256sum -c SHA256SUMS --ignore-missing
    cosign verify --certificate-oidc-issuer $issuer \\
        --certificate-identity $identity $3

EOF
