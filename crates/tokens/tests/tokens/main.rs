//! Tokens that count and tokens that do not, signed by keys of the tests' own.
#![allow(clippy::unwrap_used)]

mod rsa;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use broker::topology::{Access, Name};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokens::{Algorithm, Key, Keys, Refused, Rules, WrongKey};

const NOW_MS: u64 = 1_700_000_000_000;
const NOW_S: u64 = NOW_MS / 1000;
const SECRET: &[u8] = b"a secret of more than thirty-two bytes";

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Who signs.
enum Signer {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Secret(ring::hmac::Algorithm, Vec<u8>),
}

impl Signer {
    fn p256() -> Signer {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Signer::P256(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
    }

    fn p384() -> Signer {
        let (algorithm, random) = (&ECDSA_P384_SHA384_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Signer::P384(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
    }

    fn ed25519() -> Signer {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn jwk(&self, id: &str) -> Value {
        let point = |curve: &str, bytes: &[u8]| {
            let (x, y) = bytes[1..].split_at((bytes.len() - 1) / 2);
            json!({"kty": "EC", "crv": curve, "kid": id, "x": base64(x), "y": base64(y)})
        };
        match self {
            Signer::P256(pair) => point("P-256", pair.public_key().as_ref()),
            Signer::P384(pair) => point("P-384", pair.public_key().as_ref()),
            Signer::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": base64(pair.public_key())})
            }
            Signer::Secret(_, secret) => json!({"kty": "oct", "kid": id, "k": base64(secret)}),
        }
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        self.sign_text(head, &claims.to_string())
    }

    fn sign_text(&self, head: &Value, claims: &str) -> String {
        let message = format!("{}.{}", base64(head.to_string()), base64(claims));
        let bytes = message.as_bytes();
        let signature = match self {
            Signer::P256(pair) | Signer::P384(pair) => {
                pair.sign(&SystemRandom::new(), bytes).unwrap().as_ref().to_vec()
            }
            Signer::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
            Signer::Secret(algorithm, secret) => {
                ring::hmac::sign(&ring::hmac::Key::new(*algorithm, secret), bytes).as_ref().to_vec()
            }
        };
        format!("{message}.{}", base64(signature))
    }
}

fn rules() -> Rules {
    Rules {
        resource_server_id: "rabbitmq".to_owned(),
        verifies_audience: true,
        issuers: Vec::new(),
        scope_prefix: "rabbitmq.".to_owned(),
        additional_scopes: Vec::new(),
        username_claims: vec!["sub".to_owned(), "client_id".to_owned()],
        aliases: BTreeMap::new(),
        algorithms: Algorithm::ALL.map(|(algorithm, _)| algorithm).to_vec(),
        leeway_s: 10,
    }
}

/// What every good token says.
fn claims() -> Value {
    json!({"sub": "ann", "aud": ["other", "rabbitmq"], "exp": NOW_S + 60, "scope": "openid rabbitmq.read:*/q rabbitmq.tag:monitoring other.write:*/*"})
}

fn with(name: &str, value: Value) -> Value {
    let mut all = claims();
    all[name] = value;
    all
}

fn published(jwks: &[Value]) -> Keys {
    Keys::published(json!({"keys": jwks}).to_string().as_bytes()).unwrap()
}

/// What is said of claims that are signed as they should be.
fn look(rules: &Rules, claims: &Value) -> Result<broker::topology::Token, Refused> {
    let signer = Signer::p256();
    let token = signer.sign(&json!({"alg": "ES256", "kid": "k"}), claims);
    rules.look(token.as_bytes(), &published(&[signer.jwk("k")]), NOW_MS)
}

#[test]
fn a_token_by_each_algorithm_counts() {
    let secret = Signer::Secret(ring::hmac::HMAC_SHA512, SECRET.to_vec());
    let of = [
        ("ES256", Signer::p256()),
        ("ES384", Signer::p384()),
        ("EdDSA", Signer::ed25519()),
        ("HS256", Signer::Secret(ring::hmac::HMAC_SHA256, SECRET.to_vec())),
        ("HS384", Signer::Secret(ring::hmac::HMAC_SHA384, SECRET.to_vec())),
        ("HS512", secret),
    ];
    for (name, signer) in of {
        let mut keys = Keys::default();
        keys.insert("k".to_owned(), Key::from_file(signer.jwk("k").to_string().as_bytes()).unwrap());
        let token = signer.sign(&json!({"alg": name, "kid": "k"}), &claims());
        let found = rules().look(token.as_bytes(), &keys, NOW_MS).unwrap_or_else(|why| panic!("{name}: {why:?}"));
        assert_eq!((&*found.user, found.expires_ms), (&b"ann"[..], NOW_MS + 70_000));
        assert_eq!(found.tags, [Name::from("monitoring")]);
        assert!(found.scopes.allows(Access::Read, b"/", b"q") && !found.scopes.allows(Access::Write, b"/", b"q"));
        let mut spoilt = token.into_bytes();
        let at = spoilt.iter().position(|byte| *byte == b'.').unwrap() + 5;
        spoilt[at] = if spoilt[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(rules().look(&spoilt, &keys, NOW_MS), Err(Refused::Signature), "{name}");
    }
}

#[test]
fn a_token_by_rsa_counts_whichever_form_its_key_has() {
    let jwk = json!({"kty": "RSA", "kid": "rsa", "use": "sig", "n": rsa::MODULUS, "e": "AQAB"});
    let by_file = |text: &str| {
        let mut keys = Keys::default();
        keys.insert("rsa".to_owned(), Key::from_file(text.as_bytes()).unwrap());
        keys
    };
    for keys in [published(&[jwk]), by_file(rsa::SPKI), by_file(rsa::PKCS1)] {
        for (name, token) in rsa::TOKENS {
            assert_eq!(&*rules().look(token.as_bytes(), &keys, NOW_MS).unwrap().user, b"ann", "{name}");
            let others: Vec<Algorithm> =
                rules().algorithms.into_iter().filter(|it| Algorithm::named(name) != Some(*it)).collect();
            let rules = Rules { algorithms: others, ..rules() };
            assert_eq!(rules.look(token.as_bytes(), &keys, NOW_MS), Err(Refused::Algorithm), "{name} is not allowed");
        }
    }
}

#[test]
fn a_key_is_used_for_its_own_kind_of_algorithm_only() {
    // Whoever knows the public key signs with it as if it were a secret.
    let pem = rsa::SPKI.as_bytes().to_vec();
    let mut keys = Keys::default();
    keys.insert("rsa".to_owned(), Key::from_file(&pem).unwrap());
    for secret in [pem, STANDARD.decode(rsa::SPKI.lines().filter(|l| !l.starts_with('-')).collect::<String>()).unwrap()]
    {
        let token =
            Signer::Secret(ring::hmac::HMAC_SHA256, secret).sign(&json!({"alg": "HS256", "kid": "rsa"}), &claims());
        assert_eq!(rules().look(token.as_bytes(), &keys, NOW_MS), Err(Refused::OtherKind));
    }
    let signer = Signer::p256();
    let mut jwk = signer.jwk("k");
    jwk["alg"] = json!("ES384");
    let token = signer.sign(&json!({"alg": "ES256", "kid": "k"}), &claims());
    assert_eq!(
        rules().look(token.as_bytes(), &published(&[jwk]), NOW_MS),
        Err(Refused::OtherKind),
        "it says what it is for"
    );
}

#[test]
fn without_a_signature_a_token_is_none() {
    let keys = published(&[Signer::p256().jwk("k")]);
    for name in ["none", "None", "NONE", ""] {
        let token =
            format!("{}.{}.", base64(json!({"alg": name, "kid": "k"}).to_string()), base64(claims().to_string()));
        assert_eq!(rules().look(token.as_bytes(), &keys, NOW_MS), Err(Refused::Algorithm), "{name:?}");
    }
    let token =
        format!("{}.{}.", base64(json!({"alg": "ES256", "kid": "k"}).to_string()), base64(claims().to_string()));
    assert_eq!(rules().look(token.as_bytes(), &keys, NOW_MS), Err(Refused::Signature));
}

#[test]
fn another_key_of_the_same_name_signs_nothing_and_a_name_that_is_not_known_is_told_apart() {
    let signer = Signer::p256();
    let token = signer.sign(&json!({"alg": "ES256", "kid": "k"}), &claims());
    assert_eq!(rules().look(token.as_bytes(), &published(&[Signer::p256().jwk("k")]), NOW_MS), Err(Refused::Signature));
    assert_eq!(rules().look(token.as_bytes(), &published(&[signer.jwk("j")]), NOW_MS), Err(Refused::UnknownKey));
}

#[test]
fn a_token_that_names_no_key_is_of_the_default_one_or_of_the_only_one() {
    let (first, second) = (Signer::p256(), Signer::p256());
    let token = first.sign(&json!({"alg": "ES256"}), &claims());
    let mut nameless = first.jwk("");
    nameless.as_object_mut().unwrap().remove("kid");
    assert!(rules().look(token.as_bytes(), &published(&[first.jwk("a")]), NOW_MS).is_ok());
    assert!(rules().look(token.as_bytes(), &published(&[nameless]), NOW_MS).is_ok());
    let mut both = published(&[first.jwk("a"), second.jwk("b")]);
    assert_eq!(rules().look(token.as_bytes(), &both, NOW_MS), Err(Refused::UnknownKey));
    both.set_default(Some("a".to_owned()));
    assert!(rules().look(token.as_bytes(), &both, NOW_MS).is_ok());
    both.set_default(Some("b".to_owned()));
    assert_eq!(rules().look(token.as_bytes(), &both, NOW_MS), Err(Refused::Signature));
    let named = first.sign(&json!({"alg": "ES256", "kid": "a"}), &claims());
    assert!(rules().look(named.as_bytes(), &both, NOW_MS).is_ok(), "what a token names counts before the default");
}

#[test]
fn an_issuer_publishes_no_secret_and_keys_of_a_file_go_first() {
    let secret = Signer::Secret(ring::hmac::HMAC_SHA256, SECRET.to_vec());
    let encrypts = {
        let mut jwk = Signer::p256().jwk("e");
        jwk["use"] = json!("enc");
        jwk
    };
    let odd = json!({"kty": "EC", "crv": "P-521", "kid": "o"});
    assert!(published(&[secret.jwk("s"), encrypts, odd]).is_empty());
    assert_eq!(Keys::published(b"{}"), None);
    assert_eq!(Keys::published(b"<html>"), None);
    let (own, other) = (Signer::p256(), Signer::p256());
    let both = published(&[own.jwk("k")]).before(&published(&[other.jwk("k"), other.jwk("l")]));
    let by = |signer: &Signer, id: &str| signer.sign(&json!({"alg": "ES256", "kid": id}), &claims());
    assert!(rules().look(by(&own, "k").as_bytes(), &both, NOW_MS).is_ok());
    assert_eq!(rules().look(by(&other, "k").as_bytes(), &both, NOW_MS), Err(Refused::Signature));
    assert!(rules().look(by(&other, "l").as_bytes(), &both, NOW_MS).is_ok());
}

#[test]
fn files_that_are_no_public_keys_are_told_apart() {
    let wrong = |text: &str| Key::from_file(text.as_bytes()).expect_err(text);
    assert_eq!(wrong("hello"), WrongKey::Form);
    assert_eq!(wrong("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), WrongKey::Private);
    assert_eq!(wrong(r#"{"kty":"RSA","n":"AQAB","e":"AQAB","d":"AQAB"}"#), WrongKey::Private);
    assert_eq!(wrong(r#"{"kty":"oct","k":"c2hvcnQ"}"#), WrongKey::Short);
    assert_eq!(wrong(r#"{"kty":"EC","crv":"secp256k1"}"#), WrongKey::Kind);
    let certificate = rcgen::generate_simple_self_signed(vec!["issuer".to_owned()]).unwrap();
    assert!(Key::from_file(certificate.cert.pem().as_bytes()).is_ok(), "the key of a certificate");
    assert!(Key::from_file(certificate.signing_key.public_key_pem().as_bytes()).is_ok());
}

#[test]
fn a_token_counts_from_its_beginning_to_its_end_and_has_an_end() {
    assert!(look(&rules(), &with("exp", json!(NOW_S - 9))).is_ok(), "clocks differ");
    assert_eq!(look(&rules(), &with("exp", json!(NOW_S - 10))), Err(Refused::Expired));
    assert_eq!(look(&rules(), &with("exp", json!(-1))), Err(Refused::Expired));
    assert!(look(&rules(), &with("exp", json!(1e300))).is_ok());
    assert!(look(&rules(), &with("exp", json!(NOW_S as f64 + 0.5))).is_ok());
    assert_eq!(look(&rules(), &with("exp", json!("tomorrow"))), Err(Refused::Malformed));
    assert!(look(&rules(), &with("nbf", json!(NOW_S + 10))).is_ok());
    assert_eq!(look(&rules(), &with("nbf", json!(NOW_S + 11))), Err(Refused::Early));
    let mut endless = claims();
    endless.as_object_mut().unwrap().remove("exp");
    assert_eq!(look(&rules(), &endless), Err(Refused::Endless));
}

#[test]
fn a_token_is_for_this_broker_and_of_its_issuer() {
    for audience in [json!("rabbitmq"), json!("a rabbitmq b"), json!(["rabbitmq"])] {
        assert!(look(&rules(), &with("aud", audience)).is_ok());
    }
    for audience in [json!("rabbitmq2"), json!(["other"]), json!({"rabbitmq": 1}), Value::Null] {
        assert_eq!(look(&rules(), &with("aud", audience)), Err(Refused::Audience));
    }
    let any = Rules { verifies_audience: false, ..rules() };
    assert!(look(&any, &with("aud", json!("other"))).is_ok());
    let of = Rules { issuers: vec!["https://idp/realm/".to_owned()], ..rules() };
    assert!(look(&of, &with("iss", json!("https://idp/realm"))).is_ok());
    assert_eq!(look(&of, &with("iss", json!("https://idp/other"))), Err(Refused::Issuer));
    assert_eq!(look(&of, &claims()), Err(Refused::Issuer));
}

#[test]
fn the_user_is_who_the_claims_name_first() {
    let user = |rules: &Rules, claims: &Value| look(rules, claims).unwrap().user.to_string();
    assert_eq!(user(&rules(), &with("client_id", json!("app"))), "ann");
    assert_eq!(
        user(&rules(), &{
            let mut all = with("client_id", json!("app"));
            all["sub"] = json!(7);
            all
        }),
        "app"
    );
    let by_name = Rules { username_claims: vec!["user_name".to_owned()], ..rules() };
    assert_eq!(user(&by_name, &with("user_name", json!("Ann"))), "Ann");
    assert_eq!(user(&by_name, &claims()), "unknown");
    assert_eq!(user(&by_name, &with("user_name", json!(""))), "unknown", "nobody has no name");
    assert_eq!(look(&rules(), &with("sub", json!("x".repeat(256)))), Err(Refused::LongName));
}

#[test]
fn scopes_come_from_where_the_rules_say_and_count_with_their_prefix() {
    let grants = |rules: &Rules, claims: &Value| look(rules, claims).unwrap().scopes.texts().collect::<Vec<_>>();
    let additional =
        |paths: &[&str]| Rules { additional_scopes: paths.iter().map(|&p| p.to_owned()).collect(), ..rules() };
    assert_eq!(grants(&rules(), &with("scope", json!(["rabbitmq.read:a/b", "read:c/d"]))), ["read:a/b"]);
    let more = with("roles", json!("rabbitmq.write:*/*"));
    assert_eq!(grants(&additional(&["roles"]), &more), ["read:*/q", "write:*/*"]);
    let more = with("realm", json!({"access": [{"roles": ["rabbitmq.write:*/a"]}, {"roles": ["rabbitmq.write:*/b"]}]}));
    assert_eq!(grants(&additional(&["realm.access.roles"]), &more), ["read:*/q", "write:*/a", "write:*/b"]);
    let more = with("extra", json!({"rabbitmq": ["write:*/a"], "other": ["write:*/b"]}));
    assert_eq!(grants(&additional(&["extra"]), &more), ["read:*/q", "write:*/a"]);
    let more = with("authorization", json!({"permissions": [{"scopes": ["rabbitmq.write:*/a"], "rsid": "x"}]}));
    assert_eq!(grants(&rules(), &more), ["read:*/q", "write:*/a"]);
    let alias = [("dev".to_owned(), vec!["rabbitmq.configure:*/*".to_owned(), "rabbitmq.tag:management".to_owned()])];
    let aliased = Rules { aliases: alias.into_iter().collect(), ..rules() };
    assert_eq!(grants(&aliased, &with("scope", json!("dev"))), ["configure:*/*"]);
    assert_eq!(look(&aliased, &with("scope", json!("dev"))).unwrap().tags, [Name::from("management")]);
    let bare = Rules { scope_prefix: String::new(), ..rules() };
    assert_eq!(grants(&bare, &with("scope", json!("read:a/b rabbitmq.read:c/d"))), ["read:a/b"]);
    let own = with("scope", json!("rabbitmq.read:*/{sub}-* rabbitmq.read:*/{client}"));
    assert_eq!(grants(&rules(), &own), ["read:*/ann-*"]);
    let many: Vec<String> = (0..2049).map(|at| at.to_string()).collect();
    assert_eq!(look(&bare, &with("scope", json!(many))), Err(Refused::ManyScopes));
}

#[test]
fn what_is_no_token_is_refused() {
    let signer = Signer::p256();
    let keys = published(&[signer.jwk("k")]);
    let look = |token: &str| rules().look(token.as_bytes(), &keys, NOW_MS).expect_err(token);
    for token in ["", ".", "..", "a.b.c", "eyJ.eyJ.x", "e30.e30.", "e30.e30.e30.e30"] {
        assert_eq!(look(token), Refused::Malformed);
    }
    let sound = signer.sign(&json!({"alg": "ES256", "kid": "k"}), &claims());
    let (start, end) = sound.rsplit_once('.').unwrap();
    assert_eq!(look(&format!("{start}.e30.{end}")), Refused::Malformed, "a token has three parts");
    assert_eq!(look(&"a".repeat(70_000)), Refused::Malformed);
    let long = signer.sign(&json!({"alg": "ES256", "kid": "k"}), &with("more", json!("x".repeat(70_000))));
    assert_eq!(look(&long), Refused::Malformed, "nothing so long is looked at, however well it is signed");
    let head = json!({"alg": "ES256", "kid": "k", "crit": ["b64"], "b64": false});
    assert_eq!(look(&signer.sign(&head, &claims())), Refused::Critical);
    let head = json!({"alg": "ES256", "kid": "k"});
    assert_eq!(look(&signer.sign(&head, &json!(["a list"]))), Refused::Malformed);
    let twice = format!("{{\"exp\": 1, {}", &claims().to_string()[1..]);
    assert_eq!(look(&signer.sign_text(&head, &twice)), Refused::Malformed, "readers differ in what it means");
}
