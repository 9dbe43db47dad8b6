import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useTitle } from "../browser/router.ts";
import { Problem, problemOf } from "../data/problem.ts";
import { signIn } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { CommandLine } from "../parts/empty.tsx";
import { Field } from "../parts/field.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Mark } from "./mark.tsx";

/** Asks for a token; then the place of the link is shown. */
export function SignIn({ hasEnded }: { readonly hasEnded: boolean }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  useTitle("Sign in");
  const field = useRef<HTMLInputElement>(null);
  // There is nothing else to do here.
  useLayoutEffect(() => field.current?.focus(), []);
  const send = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      await signIn(token.trim());
    } catch (error) {
      setProblem(refused(problemOf(error)));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in" id="main">
      <form
        class="sign-in-form stack gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isBusy) void send();
        }}
      >
        <Mark />
        <h1>Sign in to Coppice</h1>
        <p class="muted">
          {hasEnded ? "Your session has ended. Sign in to come back to where you were." : "You only need a token."}
        </p>
        <Field
          label="Token"
          type="password"
          name="token"
          autocomplete="current-password"
          isRequired
          inputRef={field}
          isMono
          value={token}
          onValue={setToken}
        />
        {problem === undefined ? null : <ProblemNote problem={problem} />}
        <Button type="submit" tone="primary" isBusy={isBusy}>
          Sign in
        </Button>
      </form>
      <section class="sign-in-help stack gap-2">
        <h2 class="text-size">No token yet?</h2>
        <p class="muted">Create one on the host of the appliance, as root:</p>
        <CommandLine text="coppice token create --account NAME" />
      </section>
    </main>
  );
}

function refused(problem: Problem): Problem {
  if (problem.status !== 401) return problem;
  const message = "This token is not valid. It may be incomplete, expired or revoked.";
  return new Problem(message, { status: 401, code: problem.code, cause: problem });
}
