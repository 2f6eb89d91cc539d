//! A token by each of the algorithms of RSA, signed once by a key that was thrown away: nothing here
//! can make RSA keys. Each is ann's, for `rabbitmq`, until the year 2100.

/// The key as an issuer publishes it.
pub(crate) const MODULUS: &str = "9IR61tWOQG1flnrHWhd-ba-z8BQt0Al64gXUbKrZKggzlyc0GWDWe6bpYoX3aNWNtFMHS1SRXgoP94Pg5NFX4mCurpbmUtWmVO6sknaGJQLSMCPkzCQA7xtFFwVdZqfEpKqjw4p8IQC_oYSiZAz6SDU_UvhJKAs58aYDKT-OEBRhZ3DCfR9V6pen2cTmfAKXCNXK9gnIWHO7k_uj7m_-J2kEBWrqxAdg01bQHja6b11XWJ5uBaYLHgTDVfZGqPHrBzhxQmOxQB3ZVZuL1Nzh_3Xdk9mhL7r1o6cmU7wb4eg3ky1iTDMFvQZrSiM6zinrVhoB-lcIeZA4Wboz1pvD_w";

/// The same in a file.
pub(crate) const SPKI: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA9IR61tWOQG1flnrHWhd+
ba+z8BQt0Al64gXUbKrZKggzlyc0GWDWe6bpYoX3aNWNtFMHS1SRXgoP94Pg5NFX
4mCurpbmUtWmVO6sknaGJQLSMCPkzCQA7xtFFwVdZqfEpKqjw4p8IQC/oYSiZAz6
SDU/UvhJKAs58aYDKT+OEBRhZ3DCfR9V6pen2cTmfAKXCNXK9gnIWHO7k/uj7m/+
J2kEBWrqxAdg01bQHja6b11XWJ5uBaYLHgTDVfZGqPHrBzhxQmOxQB3ZVZuL1Nzh
/3Xdk9mhL7r1o6cmU7wb4eg3ky1iTDMFvQZrSiM6zinrVhoB+lcIeZA4Wboz1pvD
/wIDAQAB
-----END PUBLIC KEY-----
";

/// The same in the form of PKCS #1.
pub(crate) const PKCS1: &str = "\
-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEA9IR61tWOQG1flnrHWhd+ba+z8BQt0Al64gXUbKrZKggzlyc0GWDW
e6bpYoX3aNWNtFMHS1SRXgoP94Pg5NFX4mCurpbmUtWmVO6sknaGJQLSMCPkzCQA
7xtFFwVdZqfEpKqjw4p8IQC/oYSiZAz6SDU/UvhJKAs58aYDKT+OEBRhZ3DCfR9V
6pen2cTmfAKXCNXK9gnIWHO7k/uj7m/+J2kEBWrqxAdg01bQHja6b11XWJ5uBaYL
HgTDVfZGqPHrBzhxQmOxQB3ZVZuL1Nzh/3Xdk9mhL7r1o6cmU7wb4eg3ky1iTDMF
vQZrSiM6zinrVhoB+lcIeZA4Wboz1pvD/wIDAQAB
-----END RSA PUBLIC KEY-----
";

/// The tokens.
pub(crate) const TOKENS: [(&str, &str); 6] = [
    (
        "RS256",
        "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.wn5yQtrc-KtKlxFaFXT6BOczNoWeMr1hCV0nytYkWyNQt_vg4nBCs2FTT7N05vN7Xwa4jfhK8Xr_DMv4T_iaH-VNrlC6gyRIrz35Y_I5jpfEJepyIoHWVypKDRJ7BoB4K6VQfEo_9eD1Q37eNswg3HImCPD7B7rgnzOGKfLaAcGmDylUvjkQG5VuSIZS3u6OjoWUxYJaoJzsdnmk6DtSq4-TiQ7VOnrO6FQkpgfjhfkUXVwKuwnSCYiesB9CWKd0xPNPNBVkB4smd61temrDwHvcV2owYlKd6FoQxya2B2TyW83oMzR0i2Uxou8eqa_GfW6rV0Vlaym4_Z3ikI4pog",
    ),
    (
        "RS384",
        "eyJhbGciOiJSUzM4NCIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.ui3Rz1LrLiajDzdGaufvGRFJUtJJeHrXkX9pOBePCbiEsPinso1KEFp3tisXNouiNGoEfIz4qtBtqX80a84s8x-e6ZUC1EwZWsQlSjAUgCS5Lmzn-dLKAUYKQLouSgm_OaDT6-V3GEnAaxYukio3F692LvrIoF5Exr9gQW2SZyPws_0LLZGrYCG_c58WsO6C5jKDif16308kttlDvbY8I6BONWsOvdHyLAQwFxSUg0q4-a7Tl38OF1PmMtNummC9NMNHiieupoJI0YoM7hvkkEKHvs_VxzAElKsZxTxS1KZIhLL-9nYzHqjCrOt5O0EAKzg4h4Aj6i1LTV0trAZCLw",
    ),
    (
        "RS512",
        "eyJhbGciOiJSUzUxMiIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.BLdreacLhemrrtCj6ezGMevox8ak68iJdByAwo894nfKt48I7oHi30WgywYoQbsmde0FDQZTa-9_5d1EHGH2Zi1vII48UDOy9JXH5dTgSJ_l89Mn53Jn-mxL4oT5Me_jRanMB-w-9VhMGNsGQEfE5qk_AbvvofX4llU8ztAPCd9GLYzGRIQ4uJHfkodKHIHxUKwdCvRe0OK5Spho2lJpwbZgDqUsFovSBF-GgrW1JsTUo4a8IMiEHiFoy-yKvOnYDocg1Be4Z3w8sniW6O2yoFr5MtFtGr4uoLgESFPTPB3Gn5wqAMX58WIqmmafUgCUKS191QMQw38m2_zxh8hpeQ",
    ),
    (
        "PS256",
        "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.UQRhVNWnmVmrRlCJW-I-7vJdETIBqbuwrylvHLyK-BrrE68uQ_Mb8o5mmmYcisjdn4jLKYsBgL0txyehhkI5kXcSWBFdUUZ2Rz5bNa-njrqEjY_wgeFVfsUQ9oVpdTCiys5jC_b-usfsuSwOI9y82cbcv6ZPdKxJykgVm-qQufC-RCNdLIOzfI7jK3MTukdsg76KsmtdTlgDHGBOSLosDtPJjG2Ub9n0xRn_ouGI0z2F2ATvveP_jxwZ3jPaU22ekHxflbvxC_sRTza1aEuYs19jGDuEyOnikZbu7U-K9KtkgtKanb_61jWrK1_3tnvvWnyiW2AKVFNNmrDyl81a-w",
    ),
    (
        "PS384",
        "eyJhbGciOiJQUzM4NCIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.bq0Qg14WB_xzlO4yPPnVTvoOtwHSmvJnrngZETSKPzgns2ctH79s06ARLOOqojsof2ZRNENcxj-daPGdZyfJgvzjlWUxx9puoWWt8aVRv_a2Z7Joi2HNsPH-18kjo3wSa_N00-bqvmBknJJtaqt9ZPPn8tbaFf15X57e449vjd866c6CIkeqvyX3mqiMWzLIquUR7KMi6Fy4rieTH34OdDeqZKW6o75AjPi77csPTyMrmehK1vCMYb75CAbv8qArtUdC-4522nJtUxlxgO8PaqFocxOeXvrsm6UwoPzoWTN_TKjbR1HaRCicZOJclUVCrb6QHj7erEvff7Pg3u0t0A",
    ),
    (
        "PS512",
        "eyJhbGciOiJQUzUxMiIsImtpZCI6InJzYSJ9.eyJzdWIiOiJhbm4iLCJhdWQiOiJyYWJiaXRtcSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJyYWJiaXRtcS5yZWFkOiovKiJ9.6dpdIOoQjXhFLF3tSHS7PBXGiHMIJBZ7zCsqEe77Oxezmbi2OGibul8Rs2HYW-8u8guKtkYQCEvRZjY107f8pib7TohOKB1ww7VRe9NcQi1gt4qW_J5PF4e6eQJW463COOcYyCUGf1Gxx1AH9azkVO7dZPCiaPZSy6LJrl1OAVgDGYliMMskBSa1DVzsKkASLJZ_Kzx-YDNqoOYaXRoPq81kAWaChIxzICtzG7RUucq8No3yQiavZmvC3fJ5sMPb0wqaQ7UssnaANWpFW2X7kNMoOAeUsu58XfxsR6dyKxoNRua3T2q4wI6_ZXTvR2b3GylUqInZCoD4akjMQqLAiA",
    ),
];
