import { useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { Token } from "../../client/types.ts";
import { queryOf } from "../browser/links.ts";
import { Link, navigate, useRoute } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { loadSession, useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { Empty } from "../parts/empty.tsx";
import { type Choice, Field, Select, useTyped } from "../parts/field.tsx";
import { Age } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { offsetOf, PAGE_ROWS, Pages } from "../parts/lists/pages.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Badge } from "../parts/status-mark.tsx";
import { useToast } from "../parts/toast.tsx";
import { shortId } from "../text/format.ts";
import { NewToken } from "./new-token.tsx";
import { OperatorNote } from "./operator-note.tsx";

/** Tokens of all accounts, for operators. */
export function TokensPart() {
  const { may } = useSession();
  if (may("operator")) return <Tokens />;
  return <OperatorNote>Operators see the tokens of all accounts, create new ones, and revoke them.</OperatorNote>;
}

type Filter = Token["state"] | "all";

const STATES: readonly Choice<Filter>[] = [
  { value: "valid", label: "Valid" },
  { value: "expired", label: "Expired" },
  { value: "revoked", label: "Revoked" },
  { value: "all", label: "Any" },
];

function Tokens() {
  const { parameters } = useRoute();
  const [isMaking, setMaking] = useState(false);
  const [revoked, setRevoked] = useState<Token>();
  const state = STATES.find(({ value }) => value === parameters.get("state"))?.value ?? "valid";
  const account = parameters.get("account") ?? "";
  const offset = offsetOf(parameters);
  const link = (change: Readonly<Record<string, string | number>>) =>
    queryOf({ state: state === "valid" ? "" : state, account, ...change });
  const filter = (change: Readonly<Record<string, string>>) => navigate(link(change), { replace: true });
  const [owner, setOwner] = useTyped(account, (text) => filter({ account: text.trim() }));
  const { value, problem, reload } = useResource(`appliance-tokens${link({ from: offset })}`, (signal) =>
    answerOf(
      api.v1.operator.tokens.get({
        query: {
          limit: PAGE_ROWS + 1,
          offset,
          ...(state === "all" ? {} : { state }),
          ...(account === "" ? {} : { account }),
        },
        fetch: { signal },
      }),
    ),
  );
  const rows = value?.slice(0, PAGE_ROWS);
  return (
    <>
      <div class="filters flex items-end wrap gap-3">
        <Select
          label="Status"
          value={state}
          choices={STATES}
          onValue={(next) => filter({ state: next === "valid" ? "" : next })}
        />
        <Field label="Account" value={owner} type="search" onValue={setOwner} />
        <div class="filters-end">
          <Button tone="primary" icon="plus" onClick={() => setMaking(true)}>
            New token
          </Button>
        </div>
      </div>
      {problem === undefined ? null : (
        <ProblemNote title="The tokens could not be read" problem={problem} onRetry={reload} />
      )}
      {rows === undefined && problem === undefined ? <Skeleton lines={6} label="Loading tokens" /> : null}
      {rows?.length === 0 ? <NoTokens account={account} isFiltered={link({}) !== "?"} /> : null}
      {rows === undefined || rows.length === 0 ? null : (
        <div class="appliance-tokens">
          <Table label="Tokens" columns={columnsOf(setRevoked)} rows={rows} rowKey={({ uuid }) => uuid} />
        </div>
      )}
      {value === undefined ? null : <Pages offset={offset} count={value.length} link={(from) => link({ from })} />}
      {isMaking ? <NewToken onIssued={reload} onClose={() => setMaking(false)} /> : null}
      {revoked === undefined ? null : (
        <Revocation token={revoked} onRevoked={reload} onClose={() => setRevoked(undefined)} />
      )}
    </>
  );
}

function NoTokens({ account, isFiltered }: { readonly account: string; readonly isFiltered: boolean }) {
  return (
    <Empty
      title="No matching tokens"
      text={
        <>
          {account === "" ? (
            "Choose another status, or create a token."
          ) : (
            <>
              The account <GuestText text={account} /> has no such token. Names are matched as a whole.
            </>
          )}
          {isFiltered ? (
            <>
              {" "}
              <Link href="/appliance/tokens">Show all valid tokens</Link>
            </>
          ) : null}
        </>
      }
    />
  );
}

function columnsOf(revoke: (token: Token) => void): readonly Column<Token>[] {
  return [
    { id: "account", label: "Account", cell: (token) => <Owner {...token} /> },
    { id: "scopes", label: "Scopes", isWide: true, cell: ({ scopes }) => scopes.join(", ") },
    { id: "id", label: "Id", cell: ({ uuid }) => <code title={uuid}>{shortId(uuid)}</code> },
    { id: "made", label: "Created", isFigure: true, cell: ({ issued_at }) => <Age at={issued_at} /> },
    { id: "ends", label: "Expires", isFigure: true, cell: (token) => <End {...token} /> },
    {
      id: "revoke",
      label: "Actions",
      isLabelHidden: true,
      isFigure: true,
      cell: (token) =>
        token.state === "valid" ? (
          <Button
            isSmall
            aria-label={`Revoke ${shortId(token.uuid)} of ${token.account}`}
            onClick={() => revoke(token)}
          >
            Revoke…
          </Button>
        ) : null,
    },
  ];
}

function Owner({ account, current }: Token) {
  if (!current) return account;
  return (
    <>
      {account} <Badge>this session</Badge>
    </>
  );
}

function End({ state, expires_at }: Token) {
  if (state === "revoked") return <Badge>revoked</Badge>;
  if (state === "expired") return <Badge>expired</Badge>;
  return <Age at={expires_at} />;
}

interface RevocationProps {
  readonly token: Token;
  readonly onRevoked: () => void;
  readonly onClose: () => void;
}

function Revocation({ token, onRevoked, onClose }: RevocationProps) {
  const toast = useToast();
  const { uuid, account, scopes, current } = token;
  const revoke = async () => {
    await answerOf(api.v1.operator.tokens({ uuid }).delete());
    toast(`The token ${shortId(uuid)} of ${account} is revoked.`);
    // The sign-in comes when the session has gone with its token.
    if (current) await loadSession();
    else onRevoked();
  };
  return (
    <Confirm title="Revoke a token" action="Revoke" isDangerous onConfirm={revoke} onClose={onClose}>
      <p>
        The token <code>{shortId(uuid)}</code> of the account {account} allows {scopes.join(", ")}. It ends at once and
        for good, with the sessions of this page that were begun with it. Operations continue.
      </p>
      {current ? (
        <p class="appliance-warning flex items-start gap-2">You are signed in with it: you will be signed out.</p>
      ) : null}
    </Confirm>
  );
}
