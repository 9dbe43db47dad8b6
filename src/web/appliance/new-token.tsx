import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { IssuedToken, TokenRequest } from "../../client/types.ts";
import { SCOPES } from "../../domain/scope.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-button.tsx";
import { Dialog } from "../parts/dialog.tsx";
import { Checkbox, type Choice, Field, Select } from "../parts/field.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { timeText } from "../text/format.ts";

const DAY_SECONDS = 86_400;

type Grant = TokenRequest["scopes"][number];
type Preset = "all" | "operator" | "read" | "chosen";

const PRESETS: readonly Choice<Preset>[] = [
  { value: "all", label: "Everything except operator" },
  { value: "operator", label: "Everything, including operator" },
  { value: "read", label: "Read only" },
  { value: "chosen", label: "Selected scopes" },
];

const GRANTS: Readonly<Record<Exclude<Preset, "chosen">, readonly Grant[]>> = {
  all: ["*"],
  operator: ["*", "operator"],
  read: ["images:read", "files:read", "instances:read", "operations:read"],
};

const TIMES: readonly Choice[] = [
  { value: String(DAY_SECONDS / 2), label: "12 hours" },
  { value: String(DAY_SECONDS), label: "1 day" },
  { value: String(7 * DAY_SECONDS), label: "7 days" },
  { value: String(30 * DAY_SECONDS), label: "30 days" },
  { value: String(90 * DAY_SECONDS), label: "90 days" },
  { value: String(365 * DAY_SECONDS), label: "1 year" },
];

const ACCOUNT_RULE = "Up to 128 letters, digits and . _ @ -, with a letter or a digit first.";

export interface NewTokenProps {
  readonly onIssued: () => void;
  readonly onClose: () => void;
}

/** Asks for the rights of a token, creates it, and shows it once. */
export function NewToken({ onIssued, onClose }: NewTokenProps) {
  const [issued, setIssued] = useState<IssuedToken>();
  if (issued !== undefined) return <IssuedTokenDialog issued={issued} onClose={onClose} />;
  return (
    <TokenForm
      onClose={onClose}
      onIssued={(token) => {
        setIssued(token);
        onIssued();
      }}
    />
  );
}

interface TokenFormProps {
  readonly onIssued: (issued: IssuedToken) => void;
  readonly onClose: () => void;
}

function TokenForm({ onIssued, onClose }: TokenFormProps) {
  const form = useId();
  const { account: own } = useSession();
  const [account, setAccount] = useState(own);
  const [preset, setPreset] = useState<Preset>("all");
  const [chosen, setChosen] = useState<ReadonlySet<Grant>>(new Set(GRANTS.read));
  const [ttl, setTtl] = useState(String(30 * DAY_SECONDS));
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const scopes = preset === "chosen" ? SCOPES.filter((scope) => chosen.has(scope)) : [...GRANTS[preset]];
  const field = problem?.details["field"];

  const make = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      onIssued(await answerOf(api.v1.operator.tokens.post({ account: account.trim(), scopes, ttl: Number(ttl) })));
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };
  const actions = (
    <>
      <Button onClick={onClose}>Cancel</Button>
      <Button tone="primary" type="submit" form={form} isBusy={isBusy} disabled={scopes.length === 0}>
        Create token
      </Button>
    </>
  );
  return (
    <Dialog title="New token" onClose={onClose} actions={actions}>
      <form
        id={form}
        class="appliance-form stack gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isBusy) void make();
        }}
      >
        <Field
          label="Account"
          value={account}
          onValue={(next) => {
            setAccount(next);
            setProblem(undefined);
          }}
          isRequired
          hint="Owns everything that the token creates. A new name creates a new account."
          problem={field === "account" ? ACCOUNT_RULE : undefined}
        />
        <Select label="Scopes" value={preset} choices={PRESETS} onValue={setPreset} />
        {preset === "chosen" ? (
          <ScopeChoice chosen={chosen} onChosen={setChosen} />
        ) : (
          <p class="muted small">{scopes.join(", ")}</p>
        )}
        {scopes.includes("operator") ? (
          <p class="appliance-warning flex items-start gap-2">
            Its holder sees all accounts and this host, and can create tokens like this one.
          </p>
        ) : null}
        <Select label="Valid for" value={ttl} choices={TIMES} onValue={setTtl} />
        {problem === undefined || field === "account" ? null : <ProblemNote problem={problem} />}
      </form>
    </Dialog>
  );
}

interface ScopeChoiceProps {
  readonly chosen: ReadonlySet<Grant>;
  readonly onChosen: (chosen: ReadonlySet<Grant>) => void;
}

function ScopeChoice({ chosen, onChosen }: ScopeChoiceProps) {
  const choose = (scope: Grant, isChosen: boolean) => {
    const next = new Set(chosen);
    if (isChosen) next.add(scope);
    else next.delete(scope);
    onChosen(next);
  };
  return (
    <fieldset class="appliance-scopes gap-1-4 shrink">
      <legend class="visually-hidden">Scopes</legend>
      {SCOPES.map((scope) => (
        <Checkbox
          key={scope}
          label={<code>{scope}</code>}
          isChecked={chosen.has(scope)}
          onChecked={(isChosen) => choose(scope, isChosen)}
        />
      ))}
    </fieldset>
  );
}

function IssuedTokenDialog({ issued, onClose }: { readonly issued: IssuedToken; readonly onClose: () => void }) {
  const [isWarned, setWarned] = useState(false);
  const secret = useRef<HTMLElement>(null);
  useLayoutEffect(() => secret.current?.focus(), []);
  return (
    <Dialog
      title="Token created"
      // Closing it without the button warns first.
      onClose={isWarned ? onClose : () => setWarned(true)}
      actions={
        <Button tone="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <div class="appliance-form stack gap-4">
        <p>Copy it now: it is not stored, and cannot be shown again.</p>
        <div class="command-line inset row gap-1">
          <code ref={secret} class="appliance-secret" tabIndex={0}>
            {issued.token}
          </code>
          <CopyButton text={issued.token} label="Copy the token" />
        </div>
        <p class="muted">
          For the account {issued.account}, with {issued.scopes.join(", ")}, until{" "}
          {timeText(Date.parse(issued.expires_at))}.
        </p>
        {isWarned ? (
          <p class="appliance-warning flex items-start gap-2" role="alert">
            It cannot be shown again. Close once more if you are done.
          </p>
        ) : null}
      </div>
    </Dialog>
  );
}
