"""Secrets as people, configuration files and command lines write them: passwords above all.

The list holds what `forms.FORMS` leaves out: passwords with brackets or without a digit, tables, other languages, keys
that are cut off. Every value is made when it is needed, from a seed.
"""

import random
import string
from base64 import b64encode

from agent_pipeline_tests.redaction.forms import Form, of
from agent_pipeline_tests.redaction.planting import ALPHANUMERIC, HEX, LETTERS, password, some

_WORDS = (
    "dragon", "sunshine", "monkey", "harbor", "velvet", "copper", "saturn", "marble", "falcon", "winter", "pepper",
    "rocket", "silver", "orchid", "thunder", "cobalt",
)  # fmt: skip


def bracketed(generator: random.Random) -> str:
    """Make a password that has brackets, as `p(ss)w0rd1` has."""
    opening, closing = generator.choice(["()", "[]", "{}", "<>"])
    return (
        f"{some(generator, 5, LETTERS)}{opening}{some(generator, 2)}{closing}{some(generator, 4)}7"
    )


def django_key(generator: random.Random) -> str:
    """Make a key by the alphabet that Django draws SECRET_KEY from."""
    return some(generator, 50, string.ascii_lowercase + string.digits + "!@#$%^&*(-_=+)")


def symbols(generator: random.Random) -> str:
    """Make a password of letters, a digit and symbols that many programs treat as code."""
    return f"{some(generator, 5, LETTERS)}{generator.choice('!@#^&*?~')}{some(generator, 5)}{generator.choice('$%+=')}4x"


def two_words(generator: random.Random) -> str:
    """Make a password of two words, without a digit."""
    first, second = generator.sample(_WORDS, 2)
    return generator.choice([first + second, first.title() + second.title(), f"{first}-{second}"])


def two_words_with_mark(generator: random.Random) -> str:
    """Make a password of two words and an exclamation mark, without a digit."""
    return "".join(word.title() for word in generator.sample(_WORDS, 2)) + "!"


def ordinary(generator: random.Random) -> str:
    """Make a password of one of the kinds that people choose."""
    return generator.choice([password, bracketed, symbols])(generator)


def pin(generator: random.Random) -> str:
    """Make a number of four to six digits that is no year."""
    return some(generator, 1, "3456789") + some(generator, generator.randint(3, 5), string.digits)


def docker_auth(generator: random.Random) -> str:
    return b64encode(
        f"{some(generator, 6, string.ascii_lowercase)}:{password(generator)}".encode()
    ).decode()


def env_file(generator: random.Random) -> str:
    lines = [
        "DEBUG=false",
        "DB_HOST=db.acme.io",
        f"DB_PASSWORD={password(generator)}",
        f"API_KEY={some(generator, 32)}",
    ]
    return b64encode("\n".join(lines).encode()).decode()


def base64_lines(count: int, width: int = 64):
    """Return a maker of lines as a private key has them."""
    return lambda generator: "\n".join(
        some(generator, width, ALPHANUMERIC + "+/") for _ in range(count)
    )


PEM = "PRIVATE KEY-----"
SIMPLE = of(14, ALPHANUMERIC + "!%_")
SECRET_FORMS = (
    # Passwords with brackets and other marks of code
    Form("password: {}", bracketed, note="the password contains brackets"),
    Form("password={}", bracketed, note="the password contains brackets"),
    Form("password = '{}'", bracketed, note="the password contains brackets"),
    Form('{{"password": "{}"}}', bracketed, note="the password contains brackets"),
    Form("DB_PASSWORD={}", bracketed, note="the password contains brackets"),
    Form("export ADMIN_PASSWORD='{}'", symbols),
    Form("password is {}", bracketed, note="the password contains brackets"),
    Form("my password is {}, thanks", symbols),
    Form("SECRET_KEY = '{}'", django_key, note="Django"),
    Form('SECRET_KEY="{}"', django_key, note="Django"),
    Form("SECRET_KEY={}", django_key, note="Django, in a .env file"),
    Form("'SECRET_KEY': '{}',", django_key, note="Django"),
    Form("app.secret_key = '{}'", symbols, note="Flask"),
    Form("tool --password '{}' --verbose", ordinary),
    Form('password: "{}"  # change it', ordinary),
    Form('the password "{}" does not work', bracketed, note="the password contains brackets"),
    Form("bob\tpassword\t{}", SIMPLE, note="a tab"),
    Form("api_key\t{}", of(32), note="a tab"),
    Form("password: ({})", SIMPLE),
    Form("the password is [{}]", SIMPLE),
    Form("password: <{}>", SIMPLE),
    Form("my PIN is {}", pin),
    Form("PIN: {}, thanks", pin),
    Form('{{"pin": "{}"}}', pin),
    Form("Geheimzahl {}", pin),
    Form("PASS={}", ordinary),
    # Without a digit
    Form("DB_PASSWORD={}", two_words, note="two words"),
    Form("password={}", two_words, note="two words"),
    Form("password: {}", two_words, note="two words"),
    Form("spring.datasource.password={}", two_words, note="two words"),
    Form("  db_password: {}\n  db_user: app", two_words, note="two words, YAML"),
    Form("my password is {}", two_words, note="two words"),
    Form("the password is {}.", two_words_with_mark, note="two words and an exclamation mark"),
    Form("username: bob\npassword: {}", two_words, note="two words"),
    Form("login bob, password {}", two_words_with_mark, note="two words and an exclamation mark"),
    Form("mysql --password={} shop", two_words, note="two words"),
    Form("PGPASSWORD={} psql -h db", two_words, note="two words"),
    Form("https://bob:{}@git.acme.io/repo.git", two_words, note="two words"),
    Form("sshpass -p {} ssh bob@acme.io", two_words, note="two words"),
    # XML, HTML and properties
    Form("<password>{}</password>", of(12, ALPHANUMERIC + "!%_")),
    Form("<password>{}</password>", two_words, note="two words"),
    Form("<Password>{}</Password>", SIMPLE),
    Form("<db:password>{}</db:password>", SIMPLE),
    Form('<user name="bob" password="{}"/>', SIMPLE),
    Form('<add key="DbPassword" value="{}"/>', SIMPLE),
    Form('<property name="password" value="{}"/>', SIMPLE),
    Form('<property name="hibernate.connection.password">{}</property>', SIMPLE),
    Form("<password><![CDATA[{}]]></password>", SIMPLE),
    Form('<entry key="password">{}</entry>', two_words, note="two words"),
    Form("<key>password</key><string>{}</string>", SIMPLE),
    Form('<input type="password" name="pw" value="{}">', SIMPLE),
    Form("<secret>{}</secret>", SIMPLE),
    Form("<apiKey>{}</apiKey>", of(32)),
    Form('{{"name": "DB_PASSWORD", "value": "{}"}}', SIMPLE),
    Form("- name: DB_PASSWORD\n  value: {}", SIMPLE),
    # Code
    Form("define('DB_PASSWORD', '{}');", SIMPLE),
    Form('define("AUTH_KEY", "{}");', django_key),
    Form("define( 'DB_PASSWORD', '{}' );", two_words, note="two words"),
    Form("os.environ['DB_PASSWORD'] = '{}'", ordinary),
    Form("os.environ.setdefault('SECRET_KEY', '{}')", SIMPLE),
    Form('setPassword("{}")', SIMPLE),
    Form("$password = '{}';", ordinary),
    Form("'password' => '{}',", ordinary),
    Form("const password = `{}`", SIMPLE),
    Form('String pwd = "{}";', ordinary),
    Form("connect(user='bob', password='{}', host='db')", ordinary),
    Form("connect('db', 'bob', password=\"{}\")", two_words, note="two words"),
    Form("Server=db;User Id=sa;Password={};Encrypt=true", of(14, ALPHANUMERIC + "!%_")),
    Form("Server=db;Uid=sa;Pwd={};", two_words, note="two words"),
    Form("host=db user=bob password={} dbname=shop", two_words, note="two words"),
    Form("ALTER USER bob WITH PASSWORD '{}';", ordinary),
    Form("CREATE USER bob IDENTIFIED BY '{}';", ordinary),
    Form("SET PASSWORD FOR bob = '{}';", ordinary),
    Form("GRANT ALL ON shop.* TO bob@'%' IDENTIFIED BY '{}'", two_words, note="two words"),
    # Commands
    Form("aws configure set aws_secret_access_key {}", of(40, ALPHANUMERIC + "+/")),
    Form("aws configure set aws_session_token {}", of(200, ALPHANUMERIC + "+/")),
    Form("ldapsearch -x -D cn=admin,dc=acme -w {} -b dc=acme", SIMPLE),
    Form("ldapsearch -x -H ldap://acme -w '{}'", ordinary),
    Form("smbclient //srv/share -U bob%{}", SIMPLE),
    Form("smbclient -U 'ACME\\bob%{}' //srv/share", SIMPLE),
    Form("rpcclient -U bob%{} 10.0.0.4", SIMPLE),
    Form("zip -P {} a.zip file", SIMPLE),
    Form("unzip -P '{}' a.zip", ordinary),
    Form("zip -e -P {} a.zip file", two_words, note="two words"),
    Form("7z a -p{} a.7z file", SIMPLE),
    Form('7za -p"{}" a a.7z file', SIMPLE),
    Form("7za x -p'{}' a.7z", ordinary),
    Form("ldapsearch -x -w{} -b dc=acme", SIMPLE),
    Form("mongosh -u bob -p {} db", SIMPLE),
    Form("sqlcmd -S db -U sa -P {}", SIMPLE),
    Form("htpasswd -b /etc/htpasswd bob {}", SIMPLE),
    Form("echo '{}' | sudo -S apt update", SIMPLE),
    Form("echo 'bob:{}' | chpasswd", SIMPLE),
    Form("net use Z: \\\\srv\\share {} /user:bob", SIMPLE),
    Form("net user bob {} /add", SIMPLE),
    Form("xfreerdp /u:bob /p:{} /v:srv", SIMPLE),
    Form("mount -t cifs //srv/s /mnt -o username=bob,password={}", SIMPLE),
    Form("mosquitto_pub -u bob -P {} -t topic", SIMPLE),
    Form("keytool -storepass {} -keystore k.jks", SIMPLE),
    Form("gpg --batch --passphrase {} -d f.gpg", SIMPLE),
    Form("kubectl create secret generic db --from-literal=password={}", SIMPLE),
    Form("sqlplus scott/{}@db", SIMPLE),
    Form("git config credential.helper; git config user.password {}", SIMPLE),
    Form("redis-cli CONFIG SET requirepass {}", SIMPLE),
    Form("requirepass {}", SIMPLE),
    Form("wpa_passphrase HomeNet {}", SIMPLE),
    Form('psk="{}"', SIMPLE),
    Form("ansible_ssh_pass={}", two_words, note="two words"),
    Form("openssl enc -aes-256-cbc -k {} -in f", SIMPLE),
    Form("wget --user=bob --http-password={} https://acme.io", SIMPLE),
    # Files and services
    Form('{{"auths": {{"registry.acme.io": {{"auth": "{}"}}}}}}', docker_auth, note="docker"),
    Form("acme.io\tTRUE\t/\tTRUE\t1767225600\tsessionid\t{}", of(32), note="a cookie jar"),
    Form("#HttpOnly_acme.io\tFALSE\t/\tTRUE\t0\tuid\t{}", of(40, HEX), note="a cookie jar"),
    Form(
        "https://acme.azurewebsites.net/api/run?code={}==",
        of(54, ALPHANUMERIC + "-_"),
        note="a function key",
    ),
    Form("x-functions-key: {}==", of(54, ALPHANUMERIC + "-_")),
    Form("whsec_{}", of(32)),
    Form("STRIPE_WEBHOOK_SECRET=whsec_{}", of(32)),
    Form(
        "https://discord.com/api/webhooks/{}",
        lambda g: f"{some(g, 18, '123456789')}/{some(g, 68, ALPHANUMERIC + '-_')}",
    ),
    Form(
        "https://discordapp.com/api/webhooks/{}",
        lambda g: f"{some(g, 19, '123456789')}/{some(g, 68, ALPHANUMERIC + '-_')}",
    ),
    Form("echo {} | base64 -d > .env", env_file, note="base64 of an env file"),
    Form('{{"content": "{}", "encoding": "base64"}}', env_file, note="base64 of an env file"),
    Form("data:\n  .env: {}", env_file, note="base64 of an env file"),
    Form(
        "kind: Secret\ndata:\n  password: {}",
        lambda g: b64encode(password(g).encode()).decode(),
        note="base64",
    ),
    Form(
        '{{"body": "{}"}}',
        lambda g: b64encode(f"my password is {password(g)}\n".encode()).decode(),
        note="base64 of a sentence",
    ),
    # Tables
    Form("user,password,role\nbob,{},admin", SIMPLE, note="CSV"),
    Form("user;password\nann;x1y2z3w4\nbob;{}", SIMPLE, note="CSV"),
    Form('"user","password"\n"bob","{}"', two_words, note="CSV, two words"),
    Form("name\tpasswd\nbob\t{}", SIMPLE, note="tabs"),
    Form("| user | password |\n|---|---|\n| bob | {} |", SIMPLE, note="Markdown"),
    Form(
        "| Service | Login | Passwort |\n|:--|:--|--:|\n| mail | bob | `{}` |",
        SIMPLE,
        note="Markdown",
    ),
    Form("| password | {} |", SIMPLE, note="Markdown"),
    # Languages
    Form("Das Passwort lautet {}", SIMPLE),
    Form("mein Passwort ist {}.", ordinary),
    Form("Passwort für den Server: {}", SIMPLE),
    Form("Kennwort: {}", two_words, note="two words"),
    Form("Mon mot de passe est {}", SIMPLE),
    Form("mot de passe : {}", ordinary),
    Form("le mdp est {}", SIMPLE),
    Form("我的密码是{}", SIMPLE),
    Form("密码：{}", SIMPLE),
    Form("密码: {}，谢谢", SIMPLE),
    Form("La contraseña es {}", SIMPLE),
    Form("a senha é {}", SIMPLE),
    Form("パスワードは{}です", SIMPLE),
    Form("пароль: {}", SIMPLE),
    Form("Het wachtwoord is {}", SIMPLE),
    # Keys that are cut off, and PuTTY's
    Form("-----BEGIN RSA " + PEM + "\n{}", base64_lines(5), note="cut off"),
    Form("-----BEGIN " + PEM + "\n{}\n... (truncated)", base64_lines(3), note="cut off"),
    Form("-----BEGIN OPENSSH " + PEM + "\n{}", base64_lines(2, 70), note="cut off"),
    Form("-----BEGIN EC " + PEM + " {}", base64_lines(1, 60), note="cut off, on one line"),
    Form("{}\n-----END RSA " + PEM, base64_lines(4), note="its beginning is cut off"),
    Form(
        "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: bob\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 2\n{}\n"
        "Private-MAC: 8f3k",
        base64_lines(2),
        note="PuTTY",
    ),
    Form("Private-Lines: 14\n{}", base64_lines(6), note="PuTTY, cut off"),
)
