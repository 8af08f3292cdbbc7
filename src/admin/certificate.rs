//! The name of a client, by the certificate that it has shown.

use std::net::IpAddr;

use paced::text::escaped;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::{Any, Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The longest name, in bytes.
pub(super) const MAX_NAME: usize = 100;

/// The name in this certificate (DER): its first common name, or else the first of its alternative names that is a
/// host name, an e-mail address, a URI or an IP address. It is one line, cut to [`MAX_NAME`]. `None` if there is no
/// such name.
///
/// The caller must have verified the certificate: this function verifies nothing.
pub(super) fn name(der: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(der).ok()?.tbs_certificate;
    let attributes = certificate.subject.0.iter().flat_map(|names| names.0.iter());
    let mut common = attributes.filter(|attribute| attribute.oid == COMMON_NAME);
    let name = common.find_map(|attribute| text(&attribute.value)).or_else(|| {
        let (_, names) = certificate.get::<SubjectAltName>().ok()??;
        names.0.iter().find_map(alternative)
    })?;
    // The name may have any characters: an authority may sign any text.
    let name = escaped(name.trim());
    let ends = name.char_indices().map(|(start, letter)| start + letter.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_NAME).last()?;
    Some(name[..end].to_owned())
}

/// The text of an attribute, in one of the forms that names have; `None` if it is empty.
fn text(value: &Any) -> Option<String> {
    let text = (value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str()))
        .or_else(|_| value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str()))
        .or_else(|_| value.decode_as::<Ia5StringRef<'_>>().map(|text| text.as_str()))
        .or_else(|_| value.decode_as::<TeletexStringRef<'_>>().map(|text| text.as_str()));
    text.ok().filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

fn alternative(name: &GeneralName) -> Option<String> {
    let text = match name {
        GeneralName::DnsName(text)
        | GeneralName::Rfc822Name(text)
        | GeneralName::UniformResourceIdentifier(text) => text.as_str().to_owned(),
        GeneralName::IpAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes.as_bytes()).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes.as_bytes()).map(IpAddr::from));
            address.ok()?.to_string()
        }
        _ => return None,
    };
    Some(text).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};

    use super::*;

    /// The name in a certificate of these common names and alternative ones.
    fn named(common: &[DnValue], alternative: &[SanType]) -> Option<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "an organization");
        for (number, common) in common.iter().enumerate() {
            // The library has one attribute of each type.
            let kind = if number == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
            params.distinguished_name.push(kind, common.clone());
        }
        params.subject_alt_names = alternative.to_vec();
        name(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn the_first_common_name_counts() {
        let host = SanType::DnsName("host.example".try_into().unwrap());
        let named = |common: &[DnValue]| named(common, std::slice::from_ref(&host)).unwrap();
        assert_eq!(named(&[utf8("Ana Müller")]), "Ana Müller");
        assert_eq!(named(&[utf8("ana"), utf8("admin")]), "ana");
        for other in [
            DnValue::PrintableString("ana".try_into().unwrap()),
            DnValue::Ia5String("ana".try_into().unwrap()),
            DnValue::TeletexString("ana".try_into().unwrap()),
        ] {
            assert_eq!(named(&[other]), "ana");
        }
        for empty in [utf8(""), utf8(" ")] {
            assert_eq!(named(&[empty]), "host.example");
        }
    }

    #[test]
    fn without_a_common_name_the_first_alternative_one_counts() {
        let uri = SanType::URI("spiffe://example.org/ci".try_into().unwrap());
        let mail = SanType::Rfc822Name("ana@example.org".try_into().unwrap());
        let address = |text: &str| SanType::IpAddress(text.parse().unwrap());
        let other = SanType::OtherName((vec![1, 3, 6, 1], "unknown".to_owned().into()));
        for (names, expected) in [
            (&[uri.clone(), mail.clone()][..], Some("spiffe://example.org/ci")),
            (&[mail, uri.clone()], Some("ana@example.org")),
            (&[other.clone(), uri], Some("spiffe://example.org/ci")),
            (&[address("192.0.2.7")], Some("192.0.2.7")),
            (&[address("2001:db8::7")], Some("2001:db8::7")),
            (&[other], None),
            (&[], None),
        ] {
            assert_eq!(named(&[], names).as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn a_name_is_one_line_and_short() {
        let common = |text: &str| named(&[utf8(text)], &[]).unwrap();
        assert_eq!(common("a\nb\u{202e}\u{1b}[2J"), "a\\nb\\u{202e}\\u{1b}[2J");
        assert_eq!(common(&"é".repeat(MAX_NAME)), "é".repeat(MAX_NAME / 2));
        assert_eq!(common(&format!("x{}", "𝄞".repeat(MAX_NAME))).len(), MAX_NAME - 3);
    }

    #[test]
    fn what_is_no_certificate_has_no_name() {
        for bytes in [&b""[..], &[0x30, 0x03, 0x02, 0x01, 0x01], &[0xff; 300]] {
            assert_eq!(name(bytes), None);
        }
    }
}
