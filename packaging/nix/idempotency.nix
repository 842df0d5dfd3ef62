# For Nix, in the form of the extensions of supabase/postgres (nix/ext/idempotency.nix
# there, and a line in its list).  It builds the tree that it is in; elsewhere "version"
# and "src" have to be given, such as fetchFromGitHub with the tag and its hash.
{
  lib,
  stdenv,
  postgresql,
  version ? (lib.importJSON ../../META.json).version,
  src ? lib.cleanSource ../..,
}:

stdenv.mkDerivation {
  pname = "idempotency";
  inherit version src;

  buildInputs = [ postgresql ];

  makeFlags = [ "with_llvm=no" ];

  # "make install" writes to where the server is, and that never changes in Nix
  installPhase = ''
    runHook preInstall
    install -D -t $out/lib idempotency${postgresql.dlSuffix}
    install -D -m 644 -t $out/share/postgresql/extension idempotency.control idempotency--*.sql
    runHook postInstall
  '';

  meta = {
    description = "Exactly-once business transactions for PostgreSQL";
    platforms = postgresql.meta.platforms;
    license = lib.licenses.postgresql;
  };
}
