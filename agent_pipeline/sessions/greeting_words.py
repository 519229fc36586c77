"""Words of greetings in many languages.

People use these words to greet, to thank, to ask for attention and to announce a question. This
module contains only the words; `greetings` uses them.
"""

SPACED = """
hi hello hey hiya howdy heya yo greetings welcome sup good morning afternoon evening day night
dear sir madam all team everyone folks bot assistant agent support mate buddy friend how are you
doing is it going what's whats up today i im am hope u ur well fine thanks thank very much thx
ty please pls plz help helping assist assistance me us my with a an the some any something
someone anyone anybody there here this that need want would like to ask have had got quick one
few question questions problem problems issue issues inquiry request can could may might will
shall do does for of in on at and so just again ok okay sure yes yeah yep no hmm um uh test
testing ping start begin get started wondering looking if your be able know tell speak talk chat
about now moment second minute first time nice meet long see hear back let's lets live human
person real available hallo guten tag morgen abend moin servus grüezi gruezi grüß grüss gott
gruss liebe grüße grüsse lieber liebes sehr geehrte geehrter damen herren und oder ich wir
brauche bräuchte benötige hilfe bitte danke vielen dank schön können könnten kannst könntest sie
du mir uns helfen eine einen ein kurze frage fragen anliegen habe hab hätte möchte würde gerne
gern etwas was wie geht es ihnen dir euch zusammen jemand da hier zu mit bei dabei mal hola
buenos buenas días dias tardes noches qué que tal cómo como estás estas está esta usted saludos
ayuda ayudar ayudarme ayúdame ayudame puedes puede podrías podrias podría podria por favor
gracias necesito quiero quisiera tengo una un pregunta duda consulta problema con algo alguien
ahí ahi hay muy bien muchas preguntar bonjour bonsoir salut coucou madame monsieur messieurs
mesdames merci beaucoup ça ca va comment allez vous aide aider m'aider maider aidez moi pouvez
peux tu pourriez s'il sil te plait plaît j'ai jai besoin d'aide daide de une problème probleme
je voudrais voudrai aimerais le la les des y quelqu'un ciao salve buongiorno buonasera buon
giorno sera pomeriggio come stai sta aiuto aiutarmi aiutare puoi può puo potresti potrebbe mi
per favore grazie mille ho bisogno di domanda vorrei avrei chiedere qualcosa c'è ce qualcuno olá
ola oi bom boa dia tarde noite tudo bem vai você voce vocês voces ajuda ajudar pode podem
poderia podia obrigado obrigada preciso uma com dúvida duvida pergunta tenho gostaria queria
alguém alguem aí ai hoi goedemorgen goedemiddag goedenavond goedendag goede middag avond beste
kunt kun jij mij helpen hulp nodig ik heb een vraag vraagje probleem graag alstublieft
alsjeblieft bedankt hoe gaat het met iemand even wil hej hejsa hei heisann tjena tja god dag
morgon kväll kveld aften kan ni dere hjälpa hjelpe hjælpe mig meg jag jeg behöver trenger har
brug hjälp hjelp hjælp en fråga spørsmål spørgsmål ett et tack takk tak snälla vær så snill
venligst är er någon noen nogen där der terve hyvää päivää huomenta iltaa voitko voisitko auttaa
minua tarvitsen apua minulla kysymys kiitos moikka cześć czesc witam witaj hejka dzień dzien
dobry wieczór wieczor siema czy możesz mozesz może moze pan pani państwo pomóc pomoc pomocy
potrzebuję potrzebuje mam pytanie proszę prosze dziękuję dziekuje dzięki jest ktoś tam ahoj
dobrý den večer vecer ráno rano zdravím zdravim čau cau můžete muzete můžeš muzes pomoci pomoct
pomôcť potřebuji potrebuji potřebuju potrebujem mám dotaz otázku otazku problém prosím prosim
děkuji dekuji ďakujem díky diky jak se máte s привет здравствуйте здравствуй добрый день утро
доброе вечер приветствую салют хай можете можешь вы ты мне помочь помоги помогите пожалуйста
нужна помощь у меня есть вопрос вопросик проблема спасибо как дела кто-нибудь тут здесь привіт
вітаю добрий ранок доброго дня вечір допомогти мені потрібна допомога питання будь ласка дякую є
мене в здравей здравейте добър ден моля merhaba selam selamlar günaydın gunaydin iyi günler
gunler akşamlar aksamlar nasılsın nasilsin nasılsınız yardım yardim yardımcı yardimci olur
musunuz musun olabilir bana bir soru sorum var lütfen lutfen teşekkürler tesekkurler ediyorum
istiyorum ihtiyacım szia sziasztok helló üdvözlöm üdv jó napot reggelt estét kívánok tudna
tudnál segíteni nekem segítség segítségre van kérdésem egy kérem köszönöm bună buna ziua
dimineața dimineata seara mă ma puteți puteti poți poti ajuta ajutor nevoie o întrebare
intrebare vă rog mulțumesc multumesc zdravo bok pozdrav dobar dan jutro veče vece možete mozete
možeš mozes pomoći li trebam pomoć imam pitanje hvala molim živjo zivjo γεια γειά σας σου
καλημέρα καλημερα καλησπέρα καλησπερα χαίρετε χαιρετε μπορείτε μπορειτε μπορείς μπορεις να με
βοηθήσετε βοηθησετε βοηθήσεις θέλω βοήθεια μια ερώτηση έχω παρακαλώ ευχαριστώ halo hai selamat
pagi siang sore malam apa kabar bisa bisakah anda kamu bantu membantu saya tolong terima kasih
punya pertanyaan ada boleh mohon bantuan butuh kumusta magandang umaga hapon gabi po pwede ba
patulong salamat tulong habari hujambo jambo mambo naomba msaada asante unaweza kunisaidia
sawubona xin chào chao bạn ban anh chị chi em ơi cho tôi toi mình minh hỏi có co thể giúp giup
được duoc không khong cần cảm cam ơn مرحبا مرحبًا أهلا اهلا أهلاً السلام عليكم سلام صباح الخير
مساء كيف حالك هل يمكنك ممكن مساعدتي تساعدني مساعدة أحتاج احتاج إلى الى لدي عندي سؤال من فضلك لو
سمحت شكرا شكراً يا درود خوبی لطفا کمک میخواهم سوال دارم میتوانید کنید به שלום היי הי בוקר ערב
טוב צהריים אפשר אתה את יכול יכולה לעזור לי עזרה בבקשה צריך צריכה יש שאלה תודה מה שלומך नमस्ते
नमस्कार हैलो हेलो हाय सुप्रभात क्या आप मेरी मदद कर सकते हैं है मुझे चाहिए कृपया धन्यवाद एक सवाल
प्रश्न namaste namaskar kya aap meri madad kar sakte hain mujhe chahiye ek sawal vanakkam salaam
assalam assalamu alaikum aleikum
"""
"""Greeting words in languages that put spaces between words."""

UNSPACED = """
你好 您好 早上好 上午好 中午好 下午好 晚上好 大家好 早安 午安 晚安 嗨 哈喽 哈啰 喂 在吗 在嗎
有人吗 有人嗎 请问 請問 一下 我想问 我想問 想问 想問 我有一个问题 我有一個問題 我有个问题
我有個問題 有个问题 有個問題 能不能 能否 可以 能 帮我 幫我 帮助我 幫助我 帮助 幫助 帮忙 幫忙 帮
幫 我需要 需要 谢谢 謝謝 麻烦 麻煩 吗 嗎 呢 啊 呀 了 您 你 我 个 個 忙 请 請 こんにちは
こんばんは おはようございます おはよう はじめまして もしもし やあ どうも お世話になっております
お世話になります すみません よろしくお願いします お願いします 質問があります 質問です
質問したいです 質問 助けてください 手伝ってください 手伝って 助けて いただけますか くれますか
もらえますか できますか ちょっと ありがとうございます ありがとう いいですか が を は に か です
あります ください 안녕하세요 안녕하십니까 안녕 여보세요 반갑습니다 도와주세요 도와주실 도와줄 수
있나요 있을까요 있어요 있습니다 질문이 질문 문의드립니다 문의 저를 저 좀 부탁드립니다 부탁해요
감사합니다 계세요 계신가요 하나 สวัสดี หวัดดี ครับ ค่ะ คะ ช่วย หน่อย ได้ไหม ฉัน ผม ขอถาม มีคำถาม
ขอบคุณ ขอ ต้องการ ความช่วยเหลือ คุณ 一个 一個 一些 什么 什麼 问题 問題 有
"""
"""Greeting phrases in languages without spaces between words. The longest matching phrase counts.
"""
